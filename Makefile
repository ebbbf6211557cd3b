# The short names of what one does here. Each target is one command that also works by itself.

.PHONY: help build demo test bench docs fuzz golden fio-engine install
SECONDS ?= 60
PREFIX ?= /usr/local
export FIO_SRC

help:
	@echo 'make build   udm, and the experiments that udm bench finds beside it, into target/release'
	@echo 'make demo    build udm, serve a stack of devices, write and read it back'
	@echo 'make test    install what the tests need where that is allowed, run everything'
	@echo 'make bench   the table of speeds in BENCHMARKS.md, measured here'
	@echo 'make docs    the book and the API documentation, into out/docs and target/doc'
	@echo 'make fuzz    random input against every parser, SECONDS=60 each'
	@echo 'make fio-engine FIO_SRC=dir   fio'\''s external engine, into out/fio-engine'
	@echo 'make install PREFIX=dir       udm, libudm, udm.h, udm.pc and the manual pages; /usr/local unless given'
	@echo 'make golden  record the expected outputs again from the real programs'

build:
	cargo build --release --package udm --package udm-experiments

demo:
	cargo build --release --package udm
	scripts/demo.sh

test:
	@scripts/test.sh

bench: build
	scripts/bench-issue2.sh

docs:
	scripts/docs.sh

fuzz:
	cargo xtask fuzz --seconds $(SECONDS)

golden:
	scripts/golden.sh

fio-engine:
	fio-engine/build.sh

install:
	cargo build --release --package udm --package udm-experiments --package udm-capi
	scripts/install.sh "$(PREFIX)"
