//! libudm from outside: from C, Python and fio, and its manual page.

mod c;
mod fio;
mod manual;
mod python;
mod support;
