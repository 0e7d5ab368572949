//! A handful of ops, enough to build and verify programs without the crate that defines real ones.

use regatta_ir::schema::{AttrKind, OpSet, Schema, many, one, optional};
use regatta_ir::{Builder, Error, Op, VarType};

pub(crate) struct ToyOps;

pub(crate) static TOY: ToyOps = ToyOps;

pub(crate) fn builder() -> Builder {
    Builder::new(&TOY, 7)
}

static SCHEMAS: [Schema; 6] = [
    Schema {
        kind: "fc",
        inputs: &[one("X"), one("W"), optional("Bias")],
        outputs: &[one("Out")],
        attrs: &[("act", AttrKind::Str(""))],
    },
    Schema { kind: "relu", inputs: &[one("X")], outputs: &[one("Out")], attrs: &[] },
    Schema { kind: "sum", inputs: &[many("X")], outputs: &[one("Out")], attrs: &[] },
    Schema {
        kind: "dropout",
        inputs: &[one("X")],
        outputs: &[one("Out"), one("Mask")],
        attrs: &[("prob", AttrKind::RequiredFloat), ("seed", AttrKind::Int(0))],
    },
    Schema {
        kind: "sgd",
        inputs: &[one("Param"), one("Grad")],
        outputs: &[one("ParamOut")],
        attrs: &[("lr", AttrKind::Float(0.1))],
    },
    Schema {
        kind: "fill_constant",
        inputs: &[],
        outputs: &[one("Out")],
        attrs: &[
            ("shape", AttrKind::RequiredInts),
            ("value", AttrKind::RequiredFloat),
            ("dtype", AttrKind::Str("f32")),
        ],
    },
];

impl OpSet for ToyOps {
    fn schema(&self, kind: &str) -> Option<&Schema> {
        SCHEMAS.iter().find(|schema| schema.kind == kind)
    }

    fn infer(&self, op: &Op, ins: &[VarType]) -> Result<Vec<VarType>, Error> {
        Ok(match op.kind.as_str() {
            "fc" => {
                if ins[0].shape.last() != ins[1].shape.first() {
                    return Err(Error::Type {
                        op: "fc".into(),
                        slot: "W".into(),
                        var: op.ins("W")[0].clone(),
                        expected: format!("f32[{}, ..]", ins[0].shape.last().unwrap_or(&-1)),
                        actual: ins[1].to_string(),
                    });
                }
                vec![VarType::f32([ins[0].shape[0], ins[1].shape[1]])]
            }
            "dropout" => vec![ins[0].clone(), ins[0].clone()],
            "fill_constant" => vec![VarType::f32(op.ints("shape")?)],
            _ => vec![ins[0].clone()],
        })
    }

    fn kinds(&self) -> Vec<&str> {
        SCHEMAS.iter().map(|schema| schema.kind).collect()
    }
}
