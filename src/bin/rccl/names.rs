//! Command line values that are the fixed names of the core's types.

use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use rccl_core::{Algorithm, Collective, DataType, ReduceOp};

fn parser<T>(names: impl IntoIterator<Item = &'static str>) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err = rccl_core::Error> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(names).try_map(|name| name.parse::<T>())
}

pub(crate) fn collective() -> impl TypedValueParser<Value = Collective> {
    parser(Collective::ALL.map(Collective::name))
}

pub(crate) fn data_type() -> impl TypedValueParser<Value = DataType> {
    parser(DataType::ALL.map(DataType::name))
}

pub(crate) fn algorithm() -> impl TypedValueParser<Value = Algorithm> {
    parser(Algorithm::ALL.map(Algorithm::name))
}

pub(crate) fn op() -> impl TypedValueParser<Value = ReduceOp> {
    parser(ReduceOp::NAMES)
}

/// A value, or `auto`: whatever suits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Choice<T>(pub(crate) Option<T>);

/// An algorithm's name, or `auto`.
pub(crate) fn algorithm_or_auto() -> impl TypedValueParser<Value = Choice<Algorithm>> {
    let names = std::iter::once("auto").chain(Algorithm::ALL.map(Algorithm::name));
    PossibleValuesParser::new(names).try_map(|name| match name.as_str() {
        "auto" => Ok(Choice(None)),
        name => name.parse().map(|algorithm| Choice(Some(algorithm))),
    })
}
