//! As much of an AML interpreter as the memory devices' table needs: it loads
//! the table strictly (every package ends where its parts end) and runs its
//! methods, counting terms, against registers and memory that a test gives.
//! Encodings: ACPI 6.5, 20.2. Anything unknown panics.

use std::collections::BTreeMap;

/// What the table's regions reach, and what is notified.
pub(super) trait World {
    fn io_read(&mut self, port: u64) -> u32;
    fn io_write(&mut self, port: u64, value: u32);
    fn memory_read(&mut self, address: u64) -> u8;
    fn notify(&mut self, device: &str, value: u64);
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Integer(u64),
    Text(String),
    Buffer(Vec<u8>),
}

#[derive(Clone, Debug)]
enum Object {
    Device,
    Name(Value),
    Method { args: u8, body: Vec<u8> },
    Region { io: bool, start: u64, bytes: u64 },
    Unit { region: String, bit: u64, bits: u64 },
}

/// A loaded table.
#[derive(Default)]
pub(super) struct Namespace {
    objects: BTreeMap<String, Object>,
}

/// A place in code.
struct Code<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Code<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn done(&self) -> bool {
        self.at == self.bytes.len()
    }

    fn peek(&self) -> u8 {
        self.bytes[self.at]
    }

    fn byte(&mut self) -> u8 {
        self.at += 1;
        self.bytes[self.at - 1]
    }

    fn number(&mut self, bytes: usize) -> u64 {
        (0..bytes).fold(0, |number, n| number | u64::from(self.byte()) << (8 * n))
    }

    /// A package's length field: its value, without what it counts.
    fn length(&mut self) -> usize {
        let lead = self.byte();
        let more = usize::from(lead >> 6);
        if more == 0 {
            return usize::from(lead & 0x3f);
        }
        assert_eq!(lead & 0x30, 0);
        usize::from(lead & 0xf) | usize::try_from(self.number(more)).unwrap() << 4
    }

    /// The rest of a package whose length field is next.
    fn package(&mut self) -> Code<'a> {
        let start = self.at;
        let end = start + self.length();
        let package = Code::new(&self.bytes[self.at..end]);
        self.at = end;
        package
    }

    fn segment(&mut self) -> &'a str {
        let segment = &self.bytes[self.at..self.at + 4];
        self.at += 4;
        assert!(segment[0].is_ascii_uppercase() || segment[0] == b'_');
        std::str::from_utf8(segment).unwrap()
    }

    /// A name: whether it is absolute, and its segments.
    fn name(&mut self) -> (bool, Vec<&'a str>) {
        let absolute = self.peek() == b'\\';
        if absolute {
            self.byte();
        }
        let segments = match self.peek() {
            0x2e => self.byte().min(2),
            0x2f => {
                self.byte();
                self.byte()
            }
            _ => 1,
        };
        (absolute, (0..segments).map(|_| self.segment()).collect())
    }

    fn name_is_next(&self) -> bool {
        matches!(self.peek(), b'\\' | b'_' | b'A'..=b'Z' | 0x2e | 0x2f)
    }

    fn constant(&mut self) -> Option<u64> {
        let bytes = match self.peek() {
            0 | 1 => return Some(self.byte().into()),
            0x0a => 1,
            0x0b => 2,
            0x0c => 4,
            0x0e => 8,
            _ => return None,
        };
        self.byte();
        Some(self.number(bytes))
    }

    fn data(&mut self) -> Value {
        if let Some(integer) = self.constant() {
            return Value::Integer(integer);
        }
        match self.byte() {
            0x0d => {
                let bytes = self.bytes[self.at..].split(|byte| *byte == 0).next();
                let text = String::from_utf8(bytes.unwrap().to_vec()).unwrap();
                self.at += text.len() + 1;
                Value::Text(text)
            }
            0x11 => {
                let mut package = self.package();
                let size = package.constant().unwrap();
                let rest = package.bytes[package.at..].to_vec();
                assert_eq!(size, rest.len() as u64);
                Value::Buffer(rest)
            }
            other => panic!("data object {other:#x}"),
        }
    }
}

impl Namespace {
    /// Loads a whole table, header included.
    pub(super) fn load(table: &[u8]) -> Self {
        let size = u32::from_le_bytes(table[4..8].try_into().unwrap());
        assert_eq!(size as usize, table.len());
        let sum = table.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
        assert_eq!(sum, 0);
        let mut namespace = Self::default();
        namespace.terms("", Code::new(&table[36..]));
        namespace
    }

    fn add(&mut self, scope: &str, code: &mut Code<'_>, object: Object) -> String {
        let (absolute, segments) = code.name();
        let scope = if absolute { "" } else { scope };
        let path = segments
            .iter()
            .fold(scope.to_owned(), |path, segment| path + "." + segment);
        let old = self.objects.insert(path.clone(), object);
        assert!(old.is_none(), "{path} is there twice");
        path
    }

    fn terms(&mut self, scope: &str, mut code: Code<'_>) {
        while !code.done() {
            match code.byte() {
                0x10 => {
                    let mut package = code.package();
                    let (absolute, segments) = package.name();
                    assert!(absolute);
                    let inner = segments.iter().fold(String::new(), |p, s| p + "." + s);
                    self.terms(&inner, package);
                }
                0x08 => {
                    let path = self.add(scope, &mut code, Object::Device);
                    let value = code.data();
                    self.objects.insert(path, Object::Name(value));
                }
                0x14 => {
                    let mut package = code.package();
                    let path = self.add(scope, &mut package, Object::Device);
                    let args = package.byte() & 7;
                    let body = package.bytes[package.at..].to_vec();
                    self.objects.insert(path, Object::Method { args, body });
                }
                0x5b => self.extended(scope, &mut code),
                other => panic!("term {other:#x} in {scope}"),
            }
        }
    }

    fn extended(&mut self, scope: &str, code: &mut Code<'_>) {
        match code.byte() {
            0x82 => {
                let mut package = code.package();
                let path = self.add(scope, &mut package, Object::Device);
                let rest = Code::new(&package.bytes[package.at..]);
                self.terms(&path, rest);
            }
            0x80 => {
                let path = self.add(scope, code, Object::Device);
                let io = code.byte() == 1;
                let start = code.constant().unwrap();
                let bytes = code.constant().unwrap();
                let region = Object::Region { io, start, bytes };
                self.objects.insert(path, region);
            }
            0x81 => {
                let mut package = code.package();
                let (absolute, segments) = package.name();
                let region = self.find(scope, absolute, &segments);
                self.units(scope, &region, package);
            }
            other => panic!("extended term {other:#x}"),
        }
    }

    fn units(&mut self, scope: &str, region: &str, mut code: Code<'_>) {
        let Object::Region { io, bytes, .. } = self.objects[region] else {
            panic!("{region} is no region");
        };
        // Access of the registers by 32 bits, of the table by bytes.
        assert_eq!(code.byte() & 0xf, if io { 3 } else { 1 });
        let mut bit = 0;
        while !code.done() {
            if code.peek() == 0 {
                code.byte();
                bit += code.length() as u64;
                continue;
            }
            let segment = code.segment();
            let bits = code.length() as u64;
            let path = format!("{scope}.{segment}");
            let unit = Object::Unit {
                region: region.to_owned(),
                bit,
                bits,
            };
            assert!(self.objects.insert(path, unit).is_none());
            bit += bits;
            assert!(bit <= bytes * 8);
        }
    }

    /// Resolves a name as seen from `scope` (ACPI 6.5, 5.3).
    fn find(&self, scope: &str, absolute: bool, segments: &[&str]) -> String {
        let join = |scope: &str| segments.iter().fold(scope.to_owned(), |p, s| p + "." + s);
        if absolute {
            return join("");
        }
        if segments.len() > 1 {
            return join(scope);
        }
        let mut scope = scope;
        loop {
            let path = join(scope);
            if self.objects.contains_key(&path) {
                return path;
            }
            let (parent, _) = scope.rsplit_once('.').unwrap();
            scope = parent;
        }
    }

    /// Paths of all devices.
    pub(super) fn devices(&self) -> Vec<&str> {
        let is_device = |object: &Object| matches!(object, Object::Device);
        self.objects
            .iter()
            .filter(|(_, object)| is_device(object))
            .map(|(path, _)| path.as_str())
            .collect()
    }

    /// The value of a Name.
    pub(super) fn value(&self, path: &str) -> &Value {
        match &self.objects[path] {
            Object::Name(value) => value,
            other => panic!("{path} is {other:?}"),
        }
    }

    /// Evaluates a method or field. Returns its value, 0 where there is none,
    /// and how many terms ran.
    pub(super) fn evaluate(&self, path: &str, args: &[u64], world: &mut dyn World) -> (u64, u64) {
        let mut run = Run {
            namespace: self,
            world,
            terms: 0,
        };
        let value = run.object(path, args.to_vec());
        (value, run.terms)
    }
}

struct Run<'a> {
    namespace: &'a Namespace,
    world: &'a mut dyn World,
    terms: u64,
}

/// One call of a method.
struct Frame {
    path: String,
    args: Vec<u64>,
    locals: [u64; 8],
}

impl Run<'_> {
    fn object(&mut self, path: &str, args: Vec<u64>) -> u64 {
        match &self.namespace.objects[path] {
            Object::Method { args: count, body } => {
                assert_eq!(usize::from(*count), args.len(), "{path}");
                let mut frame = Frame {
                    path: path.to_owned(),
                    args,
                    locals: [0; 8],
                };
                self.block(&mut frame, Code::new(body));
                0
            }
            Object::Unit { region, bit, bits } => self.unit(region, *bit, *bits, None),
            other => panic!("{path} is {other:?}"),
        }
    }

    /// Reads or writes a unit of a field.
    fn unit(&mut self, region: &str, bit: u64, bits: u64, write: Option<u64>) -> u64 {
        let Object::Region { io, start, .. } = self.namespace.objects[region] else {
            panic!("{region} is no region");
        };
        let address = start + bit / 8;
        match (io, bits, write) {
            (true, 32, None) => self.world.io_read(address).into(),
            (true, 32, Some(value)) => {
                self.world.io_write(address, u32::try_from(value).unwrap());
                0
            }
            (false, 8, None) => self.world.memory_read(address).into(),
            other => panic!("access {other:?} to {region}"),
        }
    }

    fn block(&mut self, frame: &mut Frame, mut code: Code<'_>) {
        // Whether the last If was true: an Else after it is skipped.
        let mut taken = false;
        while !code.done() {
            self.terms += 1;
            match code.peek() {
                0xa0 => {
                    code.byte();
                    let mut body = code.package();
                    taken = self.value(frame, &mut body) != 0;
                    if taken {
                        self.block(frame, Code::new(&body.bytes[body.at..]));
                    }
                }
                0xa1 => {
                    code.byte();
                    let body = code.package();
                    if !taken {
                        self.block(frame, body);
                    }
                }
                0xa2 => {
                    code.byte();
                    let package = code.package();
                    loop {
                        let mut body = Code::new(package.bytes);
                        if self.value(frame, &mut body) == 0 {
                            break;
                        }
                        self.block(frame, Code::new(&body.bytes[body.at..]));
                    }
                }
                0x86 => {
                    code.byte();
                    let (absolute, segments) = code.name();
                    let device = self.namespace.find(&frame.path, absolute, &segments);
                    let is_device = matches!(self.namespace.objects[&device], Object::Device);
                    assert!(is_device, "{device}");
                    let value = self.value(frame, &mut code);
                    self.world.notify(&device, value);
                }
                _ => {
                    self.value(frame, &mut code);
                }
            }
        }
    }

    fn value(&mut self, frame: &mut Frame, code: &mut Code<'_>) -> u64 {
        if let Some(constant) = code.constant() {
            return constant;
        }
        if code.name_is_next() {
            let (absolute, segments) = code.name();
            let path = self.namespace.find(&frame.path, absolute, &segments);
            let count = match &self.namespace.objects[&path] {
                Object::Method { args, .. } => *args,
                _ => 0,
            };
            let args = (0..count).map(|_| self.value(frame, code)).collect();
            return self.object(&path, args);
        }
        let code_byte = code.byte();
        match code_byte {
            0x60..=0x67 => frame.locals[usize::from(code_byte - 0x60)],
            0x68..=0x6e => frame.args[usize::from(code_byte - 0x68)],
            0x70 => {
                let value = self.value(frame, code);
                self.store(frame, code, value);
                value
            }
            0x79 | 0x7a | 0x7b | 0x7d => {
                let (a, b) = (self.value(frame, code), self.value(frame, code));
                let value = match code_byte {
                    0x79 => a << b,
                    0x7a => a >> b,
                    0x7b => a & b,
                    _ => a | b,
                };
                self.store(frame, code, value);
                value
            }
            0x92 => u64::from(self.value(frame, code) == 0),
            0x93 => u64::from(self.value(frame, code) == self.value(frame, code)),
            0x95 => u64::from(self.value(frame, code) < self.value(frame, code)),
            other => panic!("opcode {other:#x} in {}", frame.path),
        }
    }

    fn store(&mut self, frame: &mut Frame, code: &mut Code<'_>, value: u64) {
        if code.name_is_next() {
            let (absolute, segments) = code.name();
            let path = self.namespace.find(&frame.path, absolute, &segments);
            let Object::Unit { region, bit, bits } = &self.namespace.objects[&path] else {
                panic!("a store to {path}");
            };
            self.unit(region, *bit, *bits, Some(value));
            return;
        }
        match code.byte() {
            0 => {}
            local @ 0x60..=0x67 => frame.locals[usize::from(local - 0x60)] = value,
            other => panic!("a store to {other:#x}"),
        }
    }
}
