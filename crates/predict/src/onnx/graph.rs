//! A graph of ONNX nodes that grows node by node.

use std::collections::HashSet;

use super::proto::Message;

/// Types of elements, by the numbers of `onnx.proto`.
pub(super) const FLOAT: i64 = 1;
pub(super) const INT64: i64 = 7;
pub(super) const UINT64: i64 = 13;

/// Nodes, constants and the names that are taken.
#[derive(Debug, Default)]
pub(super) struct Graph {
    nodes: Vec<Message>,
    initializers: Vec<Message>,
    names: HashSet<String>,
    n_made: usize,
}

/// An attribute of a node.
pub(super) enum Attr<'a> {
    Int(&'a str, i64),
    Ints(&'a str, &'a [i64]),
    Float(&'a str, f32),
}

impl Attr<'_> {
    fn message(&self) -> Message {
        // AttributeProto: name 1, f 2, i 3, ints 8, type 20.
        match self {
            Attr::Float(name, x) => Message::new().text(1, name).float(2, *x).int(20, 1),
            Attr::Int(name, x) => Message::new().text(1, name).int(3, *x).int(20, 2),
            Attr::Ints(name, x) => Message::new().text(1, name).ints(8, x).int(20, 7),
        }
    }
}

impl Graph {
    /// Takes a name; false if somebody has it.
    pub(super) fn take(&mut self, name: &str) -> bool {
        self.names.insert(name.to_string())
    }

    /// A name that nobody has.
    pub(super) fn fresh(&mut self, what: &str) -> String {
        loop {
            self.n_made += 1;
            let name = format!("{what}.{}", self.n_made);
            if self.take(&name) {
                return name;
            }
        }
    }

    /// Adds a node whose output has the given name, which was taken before.
    pub(super) fn node_to(
        &mut self,
        kind: &str,
        inputs: &[&str],
        output: &str,
        attrs: &[Attr<'_>],
    ) {
        self.node_of("", kind, inputs, &[output], attrs);
    }

    /// As [`Graph::node_to`], of another set of ops and with any number of outputs.
    pub(super) fn node_of(
        &mut self,
        domain: &str,
        kind: &str,
        inputs: &[&str],
        outputs: &[&str],
        attrs: &[Attr<'_>],
    ) {
        // NodeProto: input 1, output 2, name 3, op_type 4, attribute 5, domain 7.
        let name = self.fresh(kind);
        let node = Message::new().texts(1, inputs).texts(2, outputs).text(3, &name).text(4, kind);
        let node = node.messages(5, attrs.iter().map(Attr::message));
        self.nodes.push(if domain.is_empty() { node } else { node.text(7, domain) });
    }

    /// Adds a node; gives the name of its output.
    pub(super) fn node(&mut self, kind: &str, inputs: &[&str], attrs: &[Attr<'_>]) -> String {
        let output = self.fresh(&kind.to_lowercase());
        self.node_to(kind, inputs, &output, attrs);
        output
    }

    /// Converts to another type.
    pub(super) fn cast(&mut self, x: &str, to: i64) -> String {
        self.node("Cast", &[x], &[Attr::Int("to", to)])
    }

    /// A constant under a name that was taken before.
    pub(super) fn floats_to(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.initializer(name, shape, FLOAT, bytes);
    }

    /// A constant; gives its name.
    pub(super) fn floats(&mut self, shape: &[usize], values: &[f32]) -> String {
        let name = self.fresh("constant");
        self.floats_to(&name, shape, values);
        name
    }

    /// One float.
    pub(super) fn float(&mut self, value: f32) -> String {
        self.floats(&[], &[value])
    }

    /// Whole numbers in a row.
    pub(super) fn ints(&mut self, values: &[i64]) -> String {
        let name = self.fresh("constant");
        let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.initializer(&name, &[values.len()], INT64, bytes);
        name
    }

    /// One whole number.
    pub(super) fn int(&mut self, value: i64) -> String {
        let name = self.fresh("constant");
        self.initializer(&name, &[], INT64, value.to_le_bytes().to_vec());
        name
    }

    /// One whole number that is not negative.
    pub(super) fn uint(&mut self, value: u64) -> String {
        let name = self.fresh("constant");
        self.initializer(&name, &[], UINT64, value.to_le_bytes().to_vec());
        name
    }

    fn initializer(&mut self, name: &str, shape: &[usize], dtype: i64, bytes: Vec<u8>) {
        // TensorProto: dims 1, data_type 2, name 8, raw_data 9.
        let dims: Vec<i64> = shape.iter().map(|d| *d as i64).collect();
        let tensor = Message::new().ints(1, &dims).int(2, dtype).text(8, name).bytes(9, bytes);
        self.initializers.push(tensor);
    }

    /// The graph as a message, with its inputs and outputs.
    pub(super) fn finish(self, name: &str, inputs: Vec<Message>, outputs: Vec<Message>) -> Message {
        // GraphProto: node 1, name 2, initializer 5, input 11, output 12.
        Message::new()
            .messages(1, self.nodes)
            .text(2, name)
            .messages(5, self.initializers)
            .messages(11, inputs)
            .messages(12, outputs)
    }
}

/// A dimension of an input or output.
pub(super) enum Dim<'a> {
    Known(i64),
    Named(&'a str),
}

/// An input or output: name, type, and what is to be said about it.
pub(super) fn value_info(name: &str, dtype: i64, dims: &[Dim<'_>], about: &str) -> Message {
    // TensorShapeProto: dim 1, of dim_value 1 or dim_param 2; TypeProto: tensor_type 1, of
    // elem_type 1 and shape 2; ValueInfoProto: name 1, type 2, doc_string 3.
    let dims = dims.iter().map(|dim| match dim {
        Dim::Known(n) => Message::new().int(1, *n),
        Dim::Named(name) => Message::new().text(2, name),
    });
    let shape = Message::new().messages(1, dims);
    let tensor = Message::new().int(1, dtype).message(2, shape);
    Message::new().text(1, name).message(2, Message::new().message(1, tensor)).text(3, about)
}
