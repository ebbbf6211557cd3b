#!/usr/bin/env python3
"""Packs a device's image: pack.py IMAGE OUTPUT.pages.gz

The packed form is gzip over: the image's size in bytes (u64, little-endian), then for each page of 4096 bytes that is
not all zero its number (u64, little-endian) and its bytes; a last page that is cut short is padded with zeroes.
The same image gives the same file. crates/sim/src/golden.rs reads it.
"""
import gzip
import sys

PAGE = 4096


def main(source, target):
    with open(source, "rb") as image, open(target, "wb") as raw:
        with gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
            packed.write(image.seek(0, 2).to_bytes(8, "little"))
            image.seek(0)
            number = 0
            while page := image.read(PAGE):
                if page.strip(b"\0"):
                    packed.write(number.to_bytes(8, "little") + page.ljust(PAGE, b"\0"))
                number += 1


main(*sys.argv[1:])
