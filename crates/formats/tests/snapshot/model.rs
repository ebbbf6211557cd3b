//! The kernel's rules as plainly as they can be said: one exception at a time, whole areas at a time
//! (`drivers/md/dm-snap-persistent.c`, 6.12).

use udm_formats::snapshot::Exception;

pub(crate) struct Kernel {
    chunk: u64,
    device: u64,
    disk: Vec<u8>,
    area: Vec<u8>,
    current_area: u64,
    current_committed: u64,
    next_free: u64,
}

impl Kernel {
    pub(crate) fn new(chunk: u64, chunks: u64, noise: u8) -> Self {
        let bytes = chunk as usize * 512;
        let mut disk = vec![noise; bytes * chunks as usize];
        disk[..bytes * 2].fill(0);
        disk[..4].copy_from_slice(b"SnAp");
        disk[4] = 1;
        disk[8] = 1;
        disk[12..16].copy_from_slice(&(chunk as u32).to_le_bytes());
        let area = vec![0; bytes];
        Self { chunk, device: chunk * chunks, disk, area, current_area: 0, current_committed: 0, next_free: 2 }
    }

    pub(crate) fn disk(&self) -> Vec<u8> {
        self.disk.clone()
    }

    pub(crate) fn prepare(&mut self) -> Option<u64> {
        if self.device < (self.next_free + 1) * self.chunk {
            return None;
        }
        let given = self.next_free;
        self.next_free += 1;
        self.skip();
        Some(given)
    }

    pub(crate) fn commit(&mut self, e: Exception) {
        let at = self.current_committed as usize * 16;
        self.area[at..at + 8].copy_from_slice(&e.old.to_le_bytes());
        self.area[at + 8..at + 16].copy_from_slice(&e.new.to_le_bytes());
        self.current_committed += 1;
        let full = self.current_committed == self.per_area();
        if full {
            let next = self.place(self.current_area + 1);
            let len = self.area.len();
            self.disk[next..next + len].fill(0);
        }
        let here = self.place(self.current_area);
        let len = self.area.len();
        self.disk[here..here + len].copy_from_slice(&self.area);
        if full {
            self.current_committed = 0;
            self.current_area += 1;
            self.area.fill(0);
        }
    }

    pub(crate) fn reload(&mut self) {
        (self.current_area, self.next_free) = (0, 2);
        loop {
            let here = self.place(self.current_area);
            self.area = self.disk[here..here + self.area.len()].to_vec();
            let news = self.area.chunks_exact(16).map(|e| u64::from_le_bytes(e[8..].try_into().unwrap()));
            let news: Vec<u64> = news.take_while(|new| *new != 0).collect();
            news.iter().for_each(|new| self.next_free = self.next_free.max(new + 1));
            self.current_committed = news.len() as u64;
            if self.current_committed < self.per_area() {
                break;
            }
            self.current_area += 1;
        }
        self.skip();
    }

    pub(crate) fn usage(&self) -> String {
        format!("{}/{} {}", self.next_free * self.chunk, self.device, (self.current_area + 2) * self.chunk)
    }

    fn per_area(&self) -> u64 {
        self.chunk * 512 / 16
    }

    fn place(&self, area: u64) -> usize {
        ((1 + (self.per_area() + 1) * area) * self.chunk * 512) as usize
    }

    fn skip(&mut self) {
        if self.next_free % (self.per_area() + 1) == 1 {
            self.next_free += 1;
        }
    }
}
