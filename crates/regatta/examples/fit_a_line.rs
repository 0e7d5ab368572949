//! Linear regression: build a program, train it, save it, load it, predict.
//!
//! Type `cargo run --example fit_a_line`. You will see the cost fall from about 1100 to below 10,
//! the weights that were found beside the true ones, and two predictions of the saved model.

use regatta::prelude::*;

/// The weights to be found.
const TRUE: [f32; 13] = [9.0, -4.0, 1.0, 3.0, -7.0, 12.0, 2.0, -8.0, 6.0, -5.0, -6.0, 4.0, -11.0];

/// Twenty houses: 13 features in -1..1, and a price around 25 that follows from them.
fn houses(batch: u64) -> Result<(Value, Value), Box<dyn std::error::Error>> {
    let rng = regatta::tensor::Rng::new(1, batch);
    let x: Vec<f32> = (0..20 * 13).map(|i| 2.0 * rng.unit_f32(i) - 1.0).collect();
    let price = |row: &[f32]| 25.0 + row.iter().zip(TRUE).map(|(x, w)| x * w).sum::<f32>();
    let y = x.chunks(13).map(price).collect();
    Ok((Tensor::from_f32(&[20, 13], x)?.into(), Tensor::from_f32(&[20, 1], y)?.into()))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The model is a program: what to compute, not yet computed.
    let mut b = builder(42);
    let x = b.data("x", DType::F32, &[-1, 13])?;
    let predict = b.fc(&x, 1, Act::None)?;
    let y = b.data("y", DType::F32, &[-1, 1])?;
    let cost = b.square_error_cost(&predict, &y)?;
    let avg_cost = b.mean(&cost)?;

    // Compiler passes add gradients and updates to it.
    let sgd = Optimizer::new(Rule::Sgd(Sgd {}), 0.05);
    let trained = minimize(&b.finish(), avg_cost.name(), &sgd, &Backward::default())?;
    let Programs { main, startup } = trained.programs;

    // The startup program gives the weights their initial values; the main program is one step.
    let mut scope = Scope::new();
    run_startup(&startup, &mut scope)?;
    let mut executor = Executor::new(main.clone(), Options::default())?;
    for batch in 0..1000 {
        let (x, y) = houses(batch)?;
        let fetched = executor.run(&mut scope, &[("x", &x), ("y", &y)], &[avg_cost.name()])?;
        let cost = fetched[0].f32()[0];
        if batch % 20 == 0 || cost < 10.0 {
            println!("Batch {batch}, Cost {cost:.4}");
        }
        if cost < 10.0 {
            break;
        }
    }
    println!("true weights  {TRUE:?}");
    println!("weights found {:.1?}", scope.get("fc_0.w_0").expect("trained").f32());

    // A saved model needs neither labels nor this program to predict.
    let dir = std::env::temp_dir().join("regatta_fit_a_line");
    save_inference_model(&dir, &main, &["x"], &[predict.name()], &scope)?;
    let mut predictor = Predictor::load(&dir)?;
    let (x, y) = houses(5000)?;
    let prices = predictor.predict(&[("x", &x)])?.remove(0);
    for (price, predicted) in y.as_dense().expect("dense").f32().iter().zip(prices.f32()).take(2) {
        println!("price {price:.2}, predicted {predicted:.2}");
    }
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
