//! Programs on their way: their texts after each compiler pass.

use std::collections::HashMap;

use regatta_exec::{Executor, Options};
use regatta_ir::{Origin, Program, VarType};
use regatta_passes::pipeline::Rewrite;
use regatta_passes::{Backward, Optimizer, TableExchange, minimize_watched};

use crate::quickstart::Model;

/// What a compiler pass has made of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// The compiler pass, and what it is for.
    pub title: String,
    /// The text of the program after it.
    pub text: String,
}

/// The stages of some programs, in the order in which compiler passes have made them. A pass that
/// changes nothing leaves no stage.
#[derive(Debug, Default)]
pub struct Listing {
    stages: Vec<Stage>,
    /// The last text of every program, by its name.
    last: HashMap<String, String>,
}

impl Listing {
    /// All stages of a small model, up to what the executor runs on a batch of that size.
    ///
    /// # Errors
    /// As the compiler passes.
    pub fn of_model(
        model: &Model,
        optimizer: &Optimizer,
        batch: usize,
    ) -> Result<Listing, regatta_exec::Error> {
        let mut listing = Listing::default();
        let (programs, what) = (&model.programs, Backward::default());
        let watch =
            &mut |name: &str, about: &str, made: &dyn Rewrite| listing.add(name, about, made);
        let main = minimize_watched(programs, &model.loss, optimizer, &what, watch)?.programs.main;
        let fetch = [model.loss.as_str()];
        listing.add_execution(&main, Options::default(), &Inputs::of(batch), &fetch)?;
        Ok(listing)
    }

    /// The stages so far.
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// Adds the programs that a compiler pass has changed.
    pub fn add(&mut self, pass: &str, about: &str, made: &dyn Rewrite) {
        for program in made.programs() {
            self.add_program(&format!("{pass}: {about}"), &program);
        }
    }

    /// Adds a program, unless it is as it was.
    pub fn add_program(&mut self, title: &str, program: &Program) {
        let text = program.to_string();
        if self.last.get(&program.name) != Some(&text) {
            self.add_text(title, &text);
            self.last.insert(program.name.clone(), text);
        }
    }

    /// Adds a text.
    pub fn add_text(&mut self, title: &str, text: &str) {
        self.stages.push(Stage { title: title.to_string(), text: text.to_string() });
    }

    /// Adds what the compiler passes of the executor make of a program, for inputs of known sizes.
    ///
    /// # Errors
    /// As [`Executor::lowered`].
    pub fn add_execution(
        &mut self,
        program: &Program,
        options: Options,
        inputs: &Inputs<'_>,
        fetch: &[&str],
    ) -> Result<(), regatta_exec::Error> {
        let feeds = inputs.types(program);
        let fetch: Vec<String> = fetch.iter().map(|name| name.to_string()).collect();
        let watch = &mut |name: &str, about: &str, made: &dyn Rewrite| self.add(name, about, made);
        Executor::new(program.clone(), options)?.lowered(&feeds, &fetch, watch)?;
        Ok(())
    }
}

/// Sizes of the inputs of a program.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// Examples of a batch.
    pub batch: usize,
    /// Tables whose pulled rows are inputs: as many as there are ids if every input has one id per
    /// example and all of them differ, and the padding row.
    pub pulled: &'a [TableExchange],
}

impl Inputs<'_> {
    /// Inputs of a program that pulls nothing.
    pub fn of(batch: usize) -> Inputs<'static> {
        Inputs { batch, pulled: &[] }
    }

    fn types(&self, program: &Program) -> Vec<(String, VarType)> {
        let inputs = program.block().vars.values().filter(|var| var.origin == Origin::Data);
        let known = |name: &str, size: i64| match size {
            -1 => self.batch as i64,
            -2 => {
                let table = self.pulled.iter().find(|table| table.pulled == name);
                table.map_or(1, |table| 1 + (table.inputs.len() * self.batch) as i64)
            }
            size => size,
        };
        let typed = inputs.map(|var| {
            let shape = var.ty.shape.iter().map(|&size| known(&var.name, size)).collect();
            (var.name.clone(), VarType { shape, ..var.ty.clone() })
        });
        typed.collect()
    }
}
