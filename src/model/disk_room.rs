//! Decides when the disk of dq's files is nearly full.

/// The free space of a large disk, in bytes, below which the disk is nearly full.
const LARGE_DISK: u64 = 1 << 30;

/// Returns the free space, in bytes, below which a disk of `all` bytes is nearly full. On a small disk, this is a tenth
/// of the disk. Adds are refused if less than `min_free` bytes are free. The result is larger than `min_free` by at
/// least a quarter, so that a disk is nearly full before adds are refused.
pub fn nearly_full_below(all: u64, min_free: u64) -> u64 {
    LARGE_DISK.min(all / 10).max(min_free.saturating_add(min_free / 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_follows_the_size_of_the_disk_and_min_free() {
        let of = |all: u64, min_free: u64| nearly_full_below(all << 20, min_free << 20) >> 20;
        assert_eq!(of(4_000_000, 32), 1024);
        assert_eq!(of(5_000, 32), 500);
        assert_eq!(of(100, 32), 40);
        assert_eq!(of(4_000_000, 2_000), 2_500);
    }
}
