//! SHA-256 (FIPS 180-4), with which the records name what a volume held.

/// The fractions of the cube roots of the first 64 primes, 32 bits of each.
const ROUNDS: [u32; 64] = roots(3);
/// The fractions of the square roots of the first eight.
const START: [u32; 64] = roots(2);

/// 32 bits of the fraction of each of the first 64 primes' square or cube roots, by search, for want of a table to mistype.
const fn roots(degree: u32) -> [u32; 64] {
    let mut out = [0; 64];
    let (mut found, mut candidate) = (0, 2_u128);
    while found < 64 {
        let (mut divisor, mut is_prime) = (2, true);
        while divisor * divisor <= candidate {
            is_prime &= candidate % divisor != 0;
            divisor += 1;
        }
        if is_prime {
            // The largest root with root^degree <= candidate << 32 * degree, bit by bit: below 2^36.
            let (mut root, mut bit) = (0_u128, 1_u128 << 36);
            while bit > 0 {
                let more = root | bit;
                let power = if degree == 2 { more * more } else { more * more * more };
                if power <= candidate << (32 * degree) {
                    root = more;
                }
                bit >>= 1;
            }
            out[found] = root as u32;
            found += 1;
        }
        candidate += 1;
    }
    out
}

fn block(state: &mut [u32; 8], bytes: &[u8; 64]) {
    let mut words = [0_u32; 64];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    for i in 16..64 {
        let (a, b) = (words[i - 15], words[i - 2]);
        let low = a.rotate_right(7) ^ a.rotate_right(18) ^ (a >> 3);
        let high = b.rotate_right(17) ^ b.rotate_right(19) ^ (b >> 10);
        words[i] = words[i - 16].wrapping_add(low).wrapping_add(words[i - 7]).wrapping_add(high);
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    for (word, round) in words.iter().zip(&ROUNDS) {
        let mix = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let choice = (e & f) ^ (!e & g);
        let first = h.wrapping_add(mix).wrapping_add(choice).wrapping_add(*round).wrapping_add(*word);
        let mix = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let most = (a & b) ^ (a & c) ^ (b & c);
        (h, g, f, e) = (g, f, e, d.wrapping_add(first));
        (d, c, b, a) = (c, b, a, first.wrapping_add(mix).wrapping_add(most));
    }
    for (word, more) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
        *word = word.wrapping_add(more);
    }
}

/// The sum in hexadecimal, as sha256sum prints it.
pub fn sha256(bytes: &[u8]) -> String {
    let mut state = [0; 8];
    state.copy_from_slice(&START[..8]);
    let whole = bytes.chunks_exact(64);
    let mut tail = whole.remainder().to_vec();
    whole.for_each(|chunk| block(&mut state, chunk.try_into().expect("64 bytes")));
    tail.push(0x80);
    tail.resize((tail.len() + 8).next_multiple_of(64) - 8, 0);
    tail.extend((bytes.len() as u64 * 8).to_be_bytes());
    tail.chunks_exact(64).for_each(|chunk| block(&mut state, chunk.try_into().expect("64 bytes")));
    state.iter().map(|word| format!("{word:08x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums that sha256sum (coreutils 9.1) prints.
    #[test]
    fn sums_of_the_program() {
        for (bytes, expect) in [
            (Vec::new(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            (b"abc".to_vec(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (vec![b'a'; 55], "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318"),
            (vec![b'a'; 56], "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a"),
            (vec![b'a'; 64], "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb"),
            (vec![0; 4096], "ad7facb2586fc6e966c004d7d1d16b024f5805ff7cb47c7a85dabd8b48892ca7"),
        ] {
            assert_eq!(sha256(&bytes), expect, "{} bytes", bytes.len());
        }
    }
}
