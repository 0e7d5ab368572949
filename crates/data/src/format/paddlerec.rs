//! The lines of PaddleRec's samples that belong to one model each, as its readers take them.

use memchr::memchr_iter;

use super::criteo::{Criteo, CriteoParser};
use super::end_padded;
use crate::number::{parse_f32, parse_label, parse_u64};
use crate::records::Column;
use crate::{Error, LineError, LineParser, Records, Schema, SlotKind, math};

/// The fields of Ali-CCP in the order of the slots of `esmm`.
const ESMM_FIELDS: [&str; 23] = [
    "101", "109_14", "110_14", "127_14", "150_14", "121", "122", "124", "125", "126", "127", "128",
    "129", "205", "206", "207", "210", "216", "508", "509", "702", "853", "301",
];

/// A format of one of PaddleRec's readers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PaddleRec {
    /// `esmm_reader`: `id,click,conversion,x,field:id,...`, of a field at most `max_len` ids. The
    /// slots after the two labels are the 23 fields of Ali-CCP; other fields are skipped.
    Esmm {
        /// Ids of a field that are kept, the first ones.
        max_len: usize,
    },
    /// `census_reader`: the second label, the first label, then the dense features, with commas.
    Census,
    /// `dinReader`: `items;categories;item;category;label`, histories separated by blanks. The
    /// slots are the label, both histories, and both targets.
    Din,
    /// `criteo_lr_reader`: `feat_idx:1 ... feat_value:0.5 ... label:0` in any order. The slots are
    /// label, ids and their values.
    IdsAndValues,
    /// `bq_reader_train`: dense vectors with commas, a tab between two of them.
    Vectors,
    /// `queuedataset_reader` of `slot_dnn`: `id:slot ...`, where slot 1 is the label and slot 2
    /// the first of the others.
    IdsWithSlots,
    /// `reader` of `dcn_v2`: pairs of key and value, of dense values `ln(x + 1)`.
    LogDense(Criteo),
}

impl PaddleRec {
    pub(crate) fn check(&self, schema: &Schema) -> Result<(), Error> {
        let kinds: Vec<SlotKind> = schema.slots().iter().map(|slot| slot.kind).collect();
        let fits = match self {
            PaddleRec::Esmm { max_len } => {
                let fields = kinds.iter().skip(2).all(|k| *k == SlotKind::Ids);
                *max_len > 0
                    && kinds.len() == 2 + ESMM_FIELDS.len()
                    && kinds[..2] == [SlotKind::Label; 2]
                    && fields
            }
            PaddleRec::Census => {
                matches!(kinds[..], [SlotKind::Label, SlotKind::Label, SlotKind::Dense { .. }])
            }
            PaddleRec::Din => {
                let one = SlotKind::FixedIds { count: 1 };
                kinds == [SlotKind::Label, SlotKind::Ids, SlotKind::Ids, one, one]
            }
            PaddleRec::IdsAndValues => {
                use SlotKind::{Dense, FixedIds, Label};
                matches!(kinds[..], [Label, FixedIds { count }, Dense { dim }] if count == dim)
            }
            PaddleRec::Vectors => kinds.iter().all(|k| matches!(k, SlotKind::Dense { .. })),
            PaddleRec::IdsWithSlots => {
                kinds[0] == SlotKind::Label && kinds[1..].iter().all(|k| *k == SlotKind::Ids)
            }
            PaddleRec::LogDense(criteo) => return criteo.check(schema),
        };
        if fits {
            return Ok(());
        }
        Err(Error::config(format!("the slots of the model are not those of {}", self.reader())))
    }

    /// The name of the reader, for messages.
    fn reader(&self) -> &'static str {
        match self {
            PaddleRec::Esmm { .. } => "esmm_reader (two labels and 23 slots of ids)",
            PaddleRec::Census => "census_reader (two labels and dense features)",
            PaddleRec::Din => "dinReader (label, two histories, two targets)",
            PaddleRec::IdsAndValues => "criteo_lr_reader (label, ids and as many values)",
            PaddleRec::Vectors => "bq_reader_train (dense vectors)",
            PaddleRec::IdsWithSlots => "queuedataset_reader of slot_dnn (a label and slots of ids)",
            PaddleRec::LogDense(_) => "reader of dcn_v2",
        }
    }

    pub(crate) fn parser(&self, schema: &Schema) -> PaddleRecParser {
        let criteo = match self {
            PaddleRec::LogDense(criteo) => Some(criteo.parser(schema)),
            PaddleRec::IdsAndValues => {
                let keys = ["label", "feat_idx", "feat_value"].map(str::to_string).to_vec();
                Some(Criteo { keys }.parser(schema))
            }
            _ => None,
        };
        PaddleRecParser { format: self.clone(), criteo }
    }
}

pub(crate) struct PaddleRecParser {
    format: PaddleRec,
    /// Where lines are pairs of key and value.
    criteo: Option<CriteoParser>,
}

impl LineParser for PaddleRecParser {
    fn parse_line(
        &mut self,
        number: u64,
        line: &[u8],
        out: &mut Records,
    ) -> Result<(), Box<LineError>> {
        let line = line.trim_ascii_end();
        match (&self.format, &mut self.criteo) {
            (PaddleRec::LogDense(_), Some(parser)) => {
                parser.parse_line(number, line, out)?;
                take_logs(line, out)
            }
            (_, Some(parser)) => parser.parse_line(number, line, out),
            (PaddleRec::Esmm { max_len }, _) => esmm(line, *max_len, out),
            (PaddleRec::Census, _) => census(line, out),
            (PaddleRec::Din, _) => din(line, out),
            (PaddleRec::IdsWithSlots, _) => ids_with_slots(line, out),
            _ => vectors(line, out),
        }
    }
}

/// The fields of a line with where they begin.
fn fields(line: &[u8], separator: u8) -> impl Iterator<Item = (usize, &[u8])> {
    let mut start = 0;
    memchr_iter(separator, line).chain([line.len()]).map(move |end| {
        let field = (start, &line[start..end]);
        start = end + 1;
        field
    })
}

fn label(at: usize, text: &[u8], slot: &str) -> Result<i64, Box<LineError>> {
    let text = text.trim_ascii();
    parse_label(text)
        .ok_or_else(|| LineError::found(at, format!("a label (i64) for slot '{slot}'"), text))
}

fn id(at: usize, text: &[u8], what: &str) -> Result<u64, Box<LineError>> {
    parse_u64(text.trim_ascii())
        .ok_or_else(|| LineError::found(at, format!("an id (u64) {what}"), text))
}

fn float(at: usize, text: &[u8], slot: &str) -> Result<f32, Box<LineError>> {
    let number = parse_f32(text.trim_ascii()).filter(|x| x.is_finite());
    number.ok_or_else(|| LineError::found(at, format!("a finite float for slot '{slot}'"), text))
}

fn esmm(line: &[u8], max_len: usize, out: &mut Records) -> Result<(), Box<LineError>> {
    let mut count = 0;
    for (i, (at, text)) in fields(line, b',').enumerate() {
        count = i + 1;
        match i {
            1 => out.push_label(0, label(at, text, "click")?),
            2 => out.push_label(1, label(at, text, "conversion")?),
            // The reader passes over the fourth as it does over the first.
            0 | 3 => {}
            _ => {
                let text = text.trim_ascii();
                let Some(colon) = text.iter().position(|b| *b == b':') else {
                    return Err(LineError::found(at, "field:id", text));
                };
                let (field, value) = (&text[..colon], &text[colon + 1..]);
                let id = id(at + colon + 1, value, "of a field")?;
                if let Some(k) = ESMM_FIELDS.iter().position(|f| f.as_bytes() == field)
                    && out.pending(2 + k) < max_len
                {
                    out.push_id(2 + k, id);
                }
            }
        }
    }
    if count < 3 {
        return Err(LineError::whole("id,click,conversion,...", format!("{count} fields")));
    }
    end_padded(out)
}

fn census(line: &[u8], out: &mut Records) -> Result<(), Box<LineError>> {
    for (i, (at, text)) in fields(line, b',').enumerate() {
        match i {
            0 => out.push_label(1, label(at, text, "conversion")?),
            1 => out.push_label(0, label(at, text, "click")?),
            _ => out.push_float(2, float(at, text, "dense_input")?),
        }
    }
    out.end_record()
}

fn din(line: &[u8], out: &mut Records) -> Result<(), Box<LineError>> {
    let parts: Vec<(usize, &[u8])> = fields(line, b';').collect();
    let &[items, categories, item, category, last] = &parts[..] else {
        let found = format!("{} fields", parts.len());
        return Err(LineError::whole("items;categories;item;category;label", found));
    };
    for (slot, (at, text)) in [(1, items), (2, categories)] {
        for word in text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()) {
            out.push_id(slot, id(at, word, "in a history")?);
        }
    }
    if out.pending(1) != out.pending(2) {
        let found = format!("{} items and {} categories", out.pending(1), out.pending(2));
        return Err(LineError::whole("a category for each item of the history", found));
    }
    out.push_id(3, id(item.0, item.1, "of the target")?);
    out.push_id(4, id(category.0, category.1, "of the target's category")?);
    out.push_label(0, label(last.0, last.1, "label")?);
    end_padded(out)
}

fn ids_with_slots(line: &[u8], out: &mut Records) -> Result<(), Box<LineError>> {
    let n = out.columns().len() as u64;
    for (at, text) in fields(line, b' ').filter(|(_, text)| !text.is_empty()) {
        let Some(colon) = text.iter().position(|b| *b == b':') else {
            return Err(LineError::found(at, "id:slot", text));
        };
        let slot = id(at + colon + 1, &text[colon + 1..], "of a slot")?;
        match slot {
            1 => out.push_label(0, label(at, &text[..colon], "label")?),
            slot if (2..=n).contains(&slot) => {
                out.push_id(slot as usize - 1, id(at, &text[..colon], "before a slot")?);
            }
            _ => {}
        }
    }
    end_padded(out)
}

fn vectors(line: &[u8], out: &mut Records) -> Result<(), Box<LineError>> {
    let n = out.columns().len();
    let found = memchr_iter(b'\t', line).count() + 1;
    if found != n {
        let expected = format!("{n} vectors, with a tab between two of them");
        return Err(LineError::whole(expected, format!("{found} vectors")));
    }
    for (slot, (start, vector)) in fields(line, b'\t').enumerate() {
        for (at, text) in fields(vector, b',') {
            let name = &out.schema().slots()[slot].name;
            let value = float(start + at, text, name)?;
            out.push_float(slot, value);
        }
    }
    out.end_record()
}

/// `ln(x + 1)` of the dense values of the last record.
fn take_logs(line: &[u8], out: &mut Records) -> Result<(), Box<LineError>> {
    for column in out.columns_mut() {
        let Column::Floats { dim, values } = column else { continue };
        let from = values.len() - *dim;
        for value in &mut values[from..] {
            let above = f64::from(*value) + 1.0;
            if above < 1e-30 {
                let found = &line[..line.len().min(20)];
                let expected = format!("dense values above -1, which have logarithms, not {value}");
                return Err(LineError::found(0, expected, found));
            }
            *value = math::ln(above) as f32;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Slot;

    fn parse(format: &PaddleRec, slots: Vec<Slot>, line: &str) -> Result<Vec<Column>, String> {
        let schema = Schema::new(slots).unwrap();
        format.check(&schema).map_err(|e| e.to_string())?;
        let mut out = Records::new(&schema);
        format
            .parser(&schema)
            .parse_line(1, line.as_bytes(), &mut out)
            .map_err(|e| format!("{}: expected {}, found {}", e.column, e.expected, e.found))?;
        Ok(out.columns().to_vec())
    }

    fn ids(values: &[u64]) -> Column {
        Column::Ids { values: values.to_vec(), offsets: vec![0, values.len() as u32] }
    }

    fn floats(values: &[f32]) -> Column {
        Column::Floats { dim: values.len(), values: values.to_vec() }
    }

    #[test]
    fn esmm_keeps_the_first_ids_of_known_fields() {
        let format = PaddleRec::Esmm { max_len: 2 };
        let mut slots = vec![Slot::label("click"), Slot::label("conversion")];
        slots.extend((1..=23).map(|i| Slot::ids(i.to_string())));
        // The fourth field is passed over, and field 999 is none of the model's.
        let line = "17,1,0,101:5,101:6,101:7,101:8,301:9,999:4";
        let found = parse(&format, slots.clone(), line).unwrap();
        assert_eq!(found[..2], [Column::Labels(vec![1]), Column::Labels(vec![0])]);
        assert_eq!(found[2], ids(&[6, 7]));
        assert_eq!(found[24], ids(&[9]));
        assert!(found[3..24].iter().all(|column| *column == ids(&[0])));
        let error = parse(&format, slots.clone(), "1,0,0,x,101").unwrap_err();
        assert_eq!(error, "9: expected field:id, found '101'");
        let error = parse(&format, slots.clone(), "1,yes,0").unwrap_err();
        assert_eq!(error, "3: expected a label (i64) for slot 'click', found 'yes'");
        slots.pop();
        let error = parse(&format, slots, "1,0,0").unwrap_err();
        assert!(error.contains("not those of esmm_reader"), "{error}");
    }

    #[test]
    fn census_has_the_second_label_first() {
        let labels = [Slot::label("click"), Slot::label("conversion")].to_vec();
        let slots = [labels, vec![Slot::dense("dense_input", 2)]].concat();
        let found = parse(&PaddleRec::Census, slots.clone(), "1,0.0,73,-1.5").unwrap();
        let labels = [Column::Labels(vec![0]), Column::Labels(vec![1])];
        assert_eq!(found, [labels.to_vec(), vec![floats(&[73.0, -1.5])]].concat());
        let error = parse(&PaddleRec::Census, slots, "1,0,73").unwrap_err();
        assert_eq!(error, "1: expected 2 values in slot 'dense_input', found 1 value");
    }

    #[test]
    fn din_has_a_category_for_every_item() {
        let slots = || {
            let history = [Slot::label("label"), Slot::ids("items"), Slot::ids("cats")].to_vec();
            [history, vec![Slot::fixed_ids("item", 1), Slot::fixed_ids("cat", 1)]].concat()
        };
        let one = |id| Column::FixedIds { count: 1, values: vec![id] };
        let found = parse(&PaddleRec::Din, slots(), "3 4;30 40;5;50;1").unwrap();
        let history = [Column::Labels(vec![1]), ids(&[3, 4]), ids(&[30, 40])];
        assert_eq!(found, [history.to_vec(), vec![one(5), one(50)]].concat());
        let empty = parse(&PaddleRec::Din, slots(), ";;5;50;0").unwrap();
        assert_eq!(empty[1..3], [ids(&[0]), ids(&[0])]);
        let error = parse(&PaddleRec::Din, slots(), "3 4;30;5;50;1").unwrap_err();
        assert!(error.ends_with("found 2 items and 1 categories"), "{error}");
        let error = parse(&PaddleRec::Din, slots(), "3;30;5;1").unwrap_err();
        assert!(error.ends_with("found 4 fields"), "{error}");
    }

    #[test]
    fn ids_with_values_and_ids_with_slots() {
        let slots = vec![Slot::label("label"), Slot::fixed_ids("i", 2), Slot::dense("v", 2)];
        let line = "feat_idx:1 feat_idx:700 feat_value:0.25 feat_value:1.0 label:1";
        let found = parse(&PaddleRec::IdsAndValues, slots.clone(), line).unwrap();
        let fixed = Column::FixedIds { count: 2, values: vec![1, 700] };
        assert_eq!(found, [Column::Labels(vec![1]), fixed, floats(&[0.25, 1.0])]);
        assert!(parse(&PaddleRec::IdsAndValues, slots, "feat_idx:1 label:1").is_err());

        let slots = vec![Slot::label("label"), Slot::ids("1"), Slot::ids("2")];
        let line = "1:1 18446744073709551615:2 7:2 8:9";
        let found = parse(&PaddleRec::IdsWithSlots, slots.clone(), line).unwrap();
        assert_eq!(found, [Column::Labels(vec![1]), ids(&[u64::MAX, 7]), ids(&[0])]);
        let error = parse(&PaddleRec::IdsWithSlots, slots, "7:2").unwrap_err();
        assert_eq!(error, "1: expected 1 value in slot 'label', found 0 values");
    }

    #[test]
    fn vectors_and_logarithms() {
        let slots = vec![Slot::dense("query", 2), Slot::dense("doc_pos", 2)];
        let found = parse(&PaddleRec::Vectors, slots.clone(), "0,1\t2,0.5").unwrap();
        assert_eq!(found, [floats(&[0.0, 1.0]), floats(&[2.0, 0.5])]);
        let error = parse(&PaddleRec::Vectors, slots.clone(), "0,1").unwrap_err();
        assert!(error.ends_with("found 1 vectors"), "{error}");
        let error = parse(&PaddleRec::Vectors, slots, "0,1\t2,x").unwrap_err();
        assert_eq!(error, "7: expected a finite float for slot 'doc_pos', found 'x'");

        let slots = vec![Slot::label("y"), Slot::dense("d", 2)];
        let format = PaddleRec::LogDense(Criteo { keys: vec!["y".into(), "d".into()] });
        let found = parse(&format, slots.clone(), "y:1 d:0 d:1").unwrap();
        assert_eq!(found[1], floats(&[0.0, std::f32::consts::LN_2]));
        let error = parse(&format, slots, "y:1 d:0 d:-1").unwrap_err();
        assert!(error.contains("not -1"), "{error}");
    }
}
