// SPDX-License-Identifier: Apache-2.0
#include "engine/weights.h"

#include <string>

#include "base/error.h"
#include "check/check.h"
#include "comm/run_on_all.h"
#include "engine/params.h"

namespace hocket::engine {

void expect_proven(const Run& run, const Compiled& compiled, std::string_view does) {
  const check::Verdict verdict = check::check(compiled.program, compiled.reference);
  if (!verdict.ok()) {
    fail(run.name, "the static check refuses the program that {}:\n{}", does,
         check::to_text(verdict));
  }
}

checkpoint::ModelWeights open_weights(const Run& run) {
  return {run.config.model.path, run.model, run.adapter};
}

namespace {

/// Loads the parameters that the source has, and copies of them, each in its own type.
template <typename Source>
void load_from(const Source& source, const Compiled& compiled, const runtime::Store& store) {
  comm::run_on_all(store.ranks().processes(), [&] {
    for (const graph::Tensor& tensor : compiled.reference.tensors) {
      const bool copy = tensor.init.kind == graph::Init::Kind::copy;
      if (tensor.kind != graph::TensorKind::param && !copy) continue;
      const std::string& name = copy ? compiled.reference.tensor(tensor.of).name : tensor.name;
      if (!source.has(name)) continue;
      scatter(tensor, compiled.program, store, [&](int64_t begin, int64_t count, void* to) {
        source.load_range(name, begin, count, tensor.type.dtype, to);
      });
    }
    return std::string();
  });
}

}  // namespace

void load_weights(const checkpoint::ModelWeights& weights, const Compiled& compiled,
                  const runtime::Store& store) {
  load_from(weights, compiled, store);
}

void load_adapter(const checkpoint::AdapterWeights& adapter, const Compiled& compiled,
                  const runtime::Store& store) {
  load_from(adapter, compiled, store);
}

}  // namespace hocket::engine
