//! Which server of a Cluster has which slot, and to which slot a key belongs. Pure.

use redis::Value;

/// The number of slots of a Cluster.
const SLOTS: u16 = 16384;

/// Returns the slot of a key. If the key has a hash tag, only the tag decides the slot.
pub(super) fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    crc16(tag.filter(|tag| !tag.is_empty()).unwrap_or(key).as_bytes()) % SLOTS
}

/// Returns the CRC16/XMODEM of some bytes, as the Cluster's specification defines it.
fn crc16(bytes: &[u8]) -> u16 {
    let step = |crc: u16| if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
    bytes.iter().fold(0, |crc, byte| (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| step(crc)))
}

/// A range of slots, both ends included, and the address of their master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SlotRange {
    pub from: u16,
    pub to: u16,
    pub host: String,
    pub port: u16,
}

/// Reads the answer to CLUSTER SLOTS. If a server does not know its own address, the address at which it was asked is
/// used.
pub(super) fn ranges(answer: &Value, asked: &str) -> Vec<SlotRange> {
    let Value::Array(all) = answer else { return Vec::new() };
    let number = |value: &Value| match value {
        Value::Int(n) => u16::try_from(*n).ok(),
        _ => None,
    };
    let range = |one: &Value| {
        let Value::Array(parts) = one else { return None };
        let [from, to, Value::Array(master), ..] = &parts[..] else { return None };
        let host = match master.first()? {
            Value::BulkString(name) if name == b"?" => return None,
            Value::BulkString(name) if !name.is_empty() => String::from_utf8(name.clone()).ok()?,
            _ => asked.to_owned(),
        };
        Some(SlotRange { from: number(from)?, to: number(to)?, host, port: number(master.get(1)?)? })
    };
    all.iter().filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_the_slot_that_the_cluster_gives_it() {
        // From the Cluster's specification, and from the answers of CLUSTER KEYSLOT.
        assert_eq!(crc16(b"123456789"), 0x31C3);
        for (key, slot) in
            [("foo", 12182), ("{foo}.bar", 12182), ("dq:{foo}:b:t", 12182), ("x{}y", slot_of("x{}y"))]
        {
            assert_eq!(slot_of(key), slot, "{key}");
        }
        assert_ne!(slot_of("x{}y"), slot_of(""));
    }

    #[test]
    fn a_map_of_slots_is_read() {
        let text = |t: &str| Value::BulkString(t.as_bytes().to_vec());
        let server = |host: Value, port: i64| Value::Array(vec![host, Value::Int(port), text("id")]);
        let range = |from: i64, to: i64, servers: Vec<Value>| {
            Value::Array([vec![Value::Int(from), Value::Int(to)], servers].concat())
        };
        let answer = Value::Array(vec![
            range(0, 5, vec![server(text("10.0.0.1"), 7000), server(text("10.0.0.2"), 7001)]),
            range(6, 7, vec![server(text(""), 7002)]),
            range(8, 9, vec![server(Value::Nil, 7003)]),
            range(10, 11, vec![server(text("?"), 7004)]),
            range(12, 13, vec![]),
        ]);
        let found: Vec<(u16, u16, String)> = ranges(&answer, "seed")
            .into_iter()
            .map(|r| (r.from, r.to, format!("{}:{}", r.host, r.port)))
            .collect();
        let wanted = [(0, 5, "10.0.0.1:7000"), (6, 7, "seed:7002"), (8, 9, "seed:7003")];
        assert_eq!(found, wanted.map(|(from, to, at)| (from, to, at.to_owned())));
        assert_eq!(ranges(&Value::Nil, "seed"), []);
    }
}
