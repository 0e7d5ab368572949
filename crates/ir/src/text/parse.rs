//! Text -> program.

use crate::{Attr, Block, Error, Layout, Op, Origin, Program, Regularizer, Role, VarDef, VarType};

/// Reads a program in the form that it prints itself in.
///
/// # Errors
/// With the line number and what was expected there.
pub fn parse(text: &str) -> Result<Program, Error> {
    let mut program: Option<Program> = None;
    for (i, line) in text.lines().enumerate() {
        let mut line = Line::new(line, i + 1)?;
        if line.tokens.is_empty() {
            continue;
        }
        match &mut program {
            None => program = Some(line.header()?),
            Some(p) => line.body(p)?,
        }
    }
    let program = program
        .ok_or_else(|| Error::Parse { line: 1, reason: "expected 'program NAME'".into() })?;
    if program.blocks.is_empty() {
        let line = text.lines().count();
        return Err(Error::Parse { line, reason: "the program has no block".into() });
    }
    Ok(program)
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Word(String),
    Str(String),
    Punct(char),
}

struct Line {
    tokens: Vec<Token>,
    at: usize,
    number: usize,
}

type Slots = Vec<(String, Vec<String>)>;

impl Line {
    fn new(line: &str, number: usize) -> Result<Line, Error> {
        let mut tokens = Vec::new();
        let mut chars = line.char_indices().peekable();
        while let Some((start, c)) = chars.next() {
            if c.is_whitespace() {
                continue;
            }
            if c == '"' {
                let mut escaped = false;
                let end = chars
                    .by_ref()
                    .find(|&(_, c)| {
                        let done = c == '"' && !escaped;
                        escaped = c == '\\' && !escaped;
                        done
                    })
                    .ok_or(Error::Parse { line: number, reason: "unclosed text".into() })?
                    .0;
                tokens.push(Token::Str(unescape(&line[start + 1..end], number)?));
            } else if ",:=(){}[]".contains(c) {
                tokens.push(Token::Punct(c));
            } else {
                let mut end = start + c.len_utf8();
                while let Some(&(at, c)) = chars.peek() {
                    if c.is_whitespace() || ",:=(){}[]\"".contains(c) {
                        break;
                    }
                    end = at + c.len_utf8();
                    chars.next();
                }
                tokens.push(Token::Word(line[start..end].to_string()));
            }
        }
        Ok(Line { tokens, at: 0, number })
    }

    fn header(&mut self) -> Result<Program, Error> {
        self.keyword("program")?;
        let name = self.word("a program name")?;
        self.end()?;
        Ok(Program { name, blocks: vec![] })
    }

    fn body(&mut self, program: &mut Program) -> Result<(), Error> {
        if self.peek_word() == Some("block") && self.tokens.len() == 2 {
            self.at += 1;
            let index = self.word("a block number")?;
            if index != program.blocks.len().to_string() {
                return self.fail(format!("expected 'block {}'", program.blocks.len()));
            }
            program.blocks.push(Block::default());
            return Ok(());
        }
        let number = self.number;
        let block = program
            .blocks
            .last_mut()
            .ok_or(Error::Parse { line: number, reason: "expected 'block 0'".into() })?;
        let origin = match self.peek_word() {
            Some("data") => Some(Origin::Data),
            Some("param") => Some(Origin::Param),
            Some("persist") => Some(Origin::Persist),
            Some("var") => Some(Origin::Temp),
            _ => None,
        };
        match origin {
            Some(origin) if matches!(self.tokens.get(1), Some(Token::Word(_))) => {
                let var = self.var(origin)?;
                block.declare(var).map_err(|e| Error::Parse { line: number, reason: e.to_string() })
            }
            _ => {
                block.ops.push(self.op()?);
                Ok(())
            }
        }
    }

    fn var(&mut self, origin: Origin) -> Result<VarDef, Error> {
        self.at += 1;
        let name = self.word("a variable name")?;
        self.punct(':')?;
        let mut word = self.word("a type")?;
        let layout = match word.as_str() {
            "ragged" => Layout::Ragged,
            "rows" => Layout::Rows,
            _ => Layout::Dense,
        };
        if layout != Layout::Dense {
            word = self.word("an element type")?;
        }
        let dtype = word.parse().or_else(|e| self.fail(e))?;
        let shape = match self.list()? {
            Attr::Ints(shape) => shape,
            _ => return self.fail("expected a shape of integers"),
        };
        let mut var = VarDef::new(name, VarType { dtype, layout, shape }, origin);
        while self.at < self.tokens.len() {
            self.var_flag(&mut var)?;
        }
        Ok(var)
    }

    fn var_flag(&mut self, var: &mut VarDef) -> Result<(), Error> {
        let flag = self.word("a flag")?;
        match flag.as_str() {
            "stop_gradient" => var.stop_gradient = true,
            "needs_gradient" => var.stop_gradient = false,
            "frozen" => var.param.trainable = false,
            "noclip" => var.param.clip = false,
            "lr_scale" => var.param.lr_scale = self.flag_value()?,
            "l1" => var.param.regularizer = Some(Regularizer::L1(self.flag_value()?)),
            "l2" => var.param.regularizer = Some(Regularizer::L2(self.flag_value()?)),
            "buffer" => {
                self.punct('=')?;
                var.buffer = Some(self.word("a buffer name")?);
            }
            _ => return self.fail(format!("unknown flag '{flag}'")),
        }
        Ok(())
    }

    fn flag_value(&mut self) -> Result<f64, Error> {
        self.punct('=')?;
        let word = self.word("a number")?;
        word.parse().or_else(|_| self.fail(format!("'{word}' is not a number")))
    }

    fn op(&mut self) -> Result<Op, Error> {
        let outputs = if self.is_followed_by('(') { vec![] } else { self.slots('=')? };
        let kind = self.word("an op")?;
        self.punct('(')?;
        let inputs = self.slots(')')?;
        let mut op = Op { kind, inputs, outputs, ..Op::default() };
        if self.try_punct('{') {
            while !self.try_punct('}') {
                let name = self.word("an attribute name")?;
                self.punct(':')?;
                let value = self.attr()?;
                if op.attrs.insert(name.clone(), value).is_some() {
                    return self.fail(format!("attribute '{name}' is given twice"));
                }
                self.try_punct(',');
            }
        }
        if self.at < self.tokens.len() {
            let role = self.word("a role")?;
            op.role = match role.as_str() {
                "@backward" => Role::Backward,
                "@optimize" => Role::Optimize,
                _ => return self.fail(format!("unknown role '{role}'")),
            };
        }
        self.end()?;
        Ok(op)
    }

    fn slots(&mut self, close: char) -> Result<Slots, Error> {
        let mut slots = Vec::new();
        while !self.try_punct(close) {
            let slot = self.word("a slot name")?;
            self.punct(':')?;
            let mut vars = Vec::new();
            if self.try_punct('[') {
                while !self.try_punct(']') {
                    vars.push(self.word("a variable")?);
                    self.try_punct(',');
                }
            } else {
                vars.push(self.word("a variable")?);
            }
            slots.push((slot, vars));
            self.try_punct(',');
        }
        Ok(slots)
    }

    fn attr(&mut self) -> Result<Attr, Error> {
        match self.tokens.get(self.at).cloned() {
            Some(Token::Str(s)) => {
                self.at += 1;
                Ok(Attr::Str(s))
            }
            Some(Token::Punct('[')) => self.list(),
            Some(Token::Word(w)) => {
                self.at += 1;
                let empty = match w.as_str() {
                    "true" => return Ok(Attr::Bool(true)),
                    "false" => return Ok(Attr::Bool(false)),
                    "ints" => Attr::Ints(vec![]),
                    "floats" => Attr::Floats(vec![]),
                    "strs" => Attr::Strs(vec![]),
                    _ => {
                        return number(&w)
                            .map_or_else(|| self.fail(format!("'{w}' is no attribute value")), Ok);
                    }
                };
                self.punct('[')?;
                self.punct(']')?;
                Ok(empty)
            }
            _ => self.fail("expected an attribute value"),
        }
    }

    fn list(&mut self) -> Result<Attr, Error> {
        self.punct('[')?;
        let mut items = Vec::new();
        while !self.try_punct(']') {
            // Lists do not nest; saying so here also bounds the recursion.
            if self.tokens.get(self.at) == Some(&Token::Punct('[')) {
                return self.fail("a list cannot hold lists");
            }
            items.push(self.attr()?);
            self.try_punct(',');
        }
        let ints = items.iter().map(|a| if let Attr::Int(x) = a { Some(*x) } else { None });
        let floats = items.iter().map(|a| if let Attr::Float(x) = a { Some(*x) } else { None });
        let strs = items.iter().map(|a| if let Attr::Str(x) = a { Some(x.clone()) } else { None });
        if let Some(x) = ints.collect() {
            Ok(Attr::Ints(x))
        } else if let Some(x) = floats.collect() {
            Ok(Attr::Floats(x))
        } else if let Some(x) = strs.collect() {
            Ok(Attr::Strs(x))
        } else {
            self.fail("a list holds values of one kind")
        }
    }

    fn is_followed_by(&self, c: char) -> bool {
        self.tokens.get(self.at + 1) == Some(&Token::Punct(c))
    }

    fn peek_word(&self) -> Option<&str> {
        match self.tokens.get(self.at) {
            Some(Token::Word(w)) => Some(w),
            _ => None,
        }
    }

    fn word(&mut self, expected: &str) -> Result<String, Error> {
        match self.tokens.get(self.at) {
            Some(Token::Word(w)) => {
                self.at += 1;
                Ok(w.clone())
            }
            other => self.fail(format!("expected {expected}, found {}", describe(other))),
        }
    }

    fn keyword(&mut self, word: &str) -> Result<(), Error> {
        if self.peek_word() == Some(word) {
            self.at += 1;
            return Ok(());
        }
        self.fail(format!("expected '{word}', found {}", describe(self.tokens.get(self.at))))
    }

    fn try_punct(&mut self, c: char) -> bool {
        let found = self.tokens.get(self.at) == Some(&Token::Punct(c));
        self.at += usize::from(found);
        found
    }

    fn punct(&mut self, c: char) -> Result<(), Error> {
        if self.try_punct(c) {
            return Ok(());
        }
        self.fail(format!("expected '{c}', found {}", describe(self.tokens.get(self.at))))
    }

    fn end(&self) -> Result<(), Error> {
        match self.tokens.get(self.at) {
            None => Ok(()),
            other => self.fail(format!("expected the end of the line, found {}", describe(other))),
        }
    }

    fn fail<T>(&self, reason: impl Into<String>) -> Result<T, Error> {
        Err(Error::Parse { line: self.number, reason: reason.into() })
    }
}

fn describe(token: Option<&Token>) -> String {
    match token {
        None => "the end of the line".into(),
        Some(Token::Word(w)) => format!("'{w}'"),
        Some(Token::Str(s)) => format!("{s:?}"),
        Some(Token::Punct(c)) => format!("'{c}'"),
    }
}

fn number(word: &str) -> Option<Attr> {
    if let Ok(x) = word.parse::<i64>() {
        return Some(Attr::Int(x));
    }
    // An integer that does not fit must not turn into a float that is nearly it.
    let digits = word.strip_prefix(['-', '+']).unwrap_or(word);
    if digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    word.parse::<f64>().ok().map(Attr::Float)
}

/// Undoes what `{:?}` does to a text.
fn unescape(s: &str, line: usize) -> Result<String, Error> {
    let bad = |what: &str| Error::Parse { line, reason: format!("bad escape '\\{what}'") };
    let mut out = String::with_capacity(s.len());
    let mut chars = s.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('t') => out.push('\t'),
            Some('0') => out.push('\0'),
            Some(c @ ('\\' | '"' | '\'')) => out.push(c),
            Some('u') => {
                let rest: String = chars.by_ref().take_while(|&c| c != '}').collect();
                let hex = rest.strip_prefix('{').filter(|hex| !hex.starts_with('+'));
                let code = hex.and_then(|hex| u32::from_str_radix(hex, 16).ok());
                let c = code.and_then(char::from_u32);
                out.push(c.ok_or_else(|| bad(&format!("u{rest}}}")))?);
            }
            other => return Err(bad(&other.map(String::from).unwrap_or_default())),
        }
    }
    Ok(out)
}
