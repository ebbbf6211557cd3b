#!/usr/bin/env bash
# Builds the book (docs/) and the API documentation.
set -euo pipefail
cd "$(dirname "$0")/.."
if command -v mdbook >/dev/null; then
    mdbook build docs --dest-dir ../out/docs
    echo "the book: out/docs/index.html"
else
    echo "SKIP the book: mdbook is not installed; docs/src/SUMMARY.md reads as it is"
fi
cargo doc --workspace --no-deps
echo "the API: target/doc/udm_core/index.html"
