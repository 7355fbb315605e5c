//! As much of JSON as a driver needs: the standard library has none.

use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Flag(bool),
    Number(f64),
    Text(String),
    List(Vec<Value>),
    Object(BTreeMap<String, Value>),
}

impl Value {
    /// The value at a path of names; Null: there is none.
    pub fn at(&self, path: &[&str]) -> &Value {
        path.iter().fold(self, |found, name| match found {
            Value::Object(fields) => fields.get(*name).unwrap_or(&Value::Null),
            _ => &Value::Null,
        })
    }

    /// A text; empty: it is none.
    pub fn text(&self) -> &str {
        match self {
            Value::Text(text) => text,
            _ => "",
        }
    }
}

/// A text as JSON.
pub fn quoted(text: &str) -> String {
    let mut found = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => found.push_str("\\\""),
            '\\' => found.push_str("\\\\"),
            c if c < ' ' => found.push_str(&format!("\\u{:04x}", c as u32)),
            c => found.push(c),
        }
    }
    found + "\""
}

/// Reads one value; None: it is no JSON.
pub fn parse(text: &str) -> Option<Value> {
    let mut reader = Reader { chars: text.trim().chars().collect(), at: 0 };
    let found = reader.value()?;
    (reader.at == reader.chars.len()).then_some(found)
}

struct Reader {
    chars: Vec<char>,
    at: usize,
}

impl Reader {
    fn peek(&mut self) -> Option<char> {
        while self.chars.get(self.at).is_some_and(|c| c.is_whitespace()) {
            self.at += 1;
        }
        self.chars.get(self.at).copied()
    }

    fn take(&mut self, wanted: char) -> Option<()> {
        (self.peek()? == wanted).then(|| self.at += 1)
    }

    fn value(&mut self) -> Option<Value> {
        match self.peek()? {
            '{' => self.object(),
            '[' => self.list(),
            '"' => self.string().map(Value::Text),
            _ => self.word(),
        }
    }

    fn word(&mut self) -> Option<Value> {
        let from = self.at;
        while self.chars.get(self.at).is_some_and(|c| !",]}".contains(*c) && !c.is_whitespace()) {
            self.at += 1;
        }
        let word: String = self.chars[from..self.at].iter().collect();
        match word.as_str() {
            "null" => Some(Value::Null),
            "true" => Some(Value::Flag(true)),
            "false" => Some(Value::Flag(false)),
            _ => word.parse().ok().map(Value::Number),
        }
    }

    fn object(&mut self) -> Option<Value> {
        self.take('{')?;
        let mut fields = BTreeMap::new();
        while self.peek()? != '}' {
            if !fields.is_empty() {
                self.take(',')?;
                self.peek()?;
            }
            let name = self.string()?;
            self.take(':')?;
            fields.insert(name, self.value()?);
        }
        self.at += 1;
        Some(Value::Object(fields))
    }

    fn list(&mut self) -> Option<Value> {
        self.take('[')?;
        let mut items = Vec::new();
        while self.peek()? != ']' {
            if !items.is_empty() {
                self.take(',')?;
            }
            items.push(self.value()?);
        }
        self.at += 1;
        Some(Value::List(items))
    }

    fn string(&mut self) -> Option<String> {
        self.take('"')?;
        let mut found: Vec<u16> = Vec::new();
        loop {
            let c = *self.chars.get(self.at)?;
            self.at += 1;
            let c = match c {
                '"' => return String::from_utf16(&found).ok(),
                '\\' => self.escaped(&mut found)?,
                c => Some(c),
            };
            if let Some(c) = c {
                found.extend_from_slice(c.encode_utf16(&mut [0; 2]));
            }
        }
    }

    fn escaped(&mut self, found: &mut Vec<u16>) -> Option<Option<char>> {
        let c = *self.chars.get(self.at)?;
        self.at += 1;
        Some(match c {
            'n' => Some('\n'),
            't' => Some('\t'),
            'r' => Some('\r'),
            'b' => Some('\u{8}'),
            'f' => Some('\u{c}'),
            'u' => {
                let digits: String = self.chars.get(self.at..self.at + 4)?.iter().collect();
                self.at += 4;
                found.push(u16::from_str_radix(&digits, 16).ok()?);
                None
            }
            c => Some(c),
        })
    }
}
