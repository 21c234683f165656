// SPDX-License-Identifier: Apache-2.0
// Weights of files in the stores of ranks, and the proof that a program comes with.
#pragma once

#include <string_view>

#include "checkpoint/adapter.h"
#include "checkpoint/model_weights.h"
#include "run/compile.h"
#include "runtime/local_ranks.h"

namespace hocket::engine {

/// Throws Error (exit code 2) with the verdict if the static check refuses a program that is about
/// to run; `does`: "evaluates".
void expect_proven(const Run& run, const Compiled& compiled, std::string_view does);

/// Opens the weights of a model that a command was given, an adapter merged into them.
checkpoint::ModelWeights open_weights(const Run& run);
/// Loads every parameter of a model into a store: each rank that is here reads its own part. An
/// adapter that is trained beside the model stays as it is. All processes call; an error in one is
/// the error of all.
void load_weights(const checkpoint::ModelWeights& weights, const Compiled& compiled,
                  const runtime::Store& store);
/// Loads an adapter that is trained, and the modules that it has in full.
void load_adapter(const checkpoint::AdapterWeights& adapter, const Compiled& compiled,
                  const runtime::Store& store);

}  // namespace hocket::engine
