// SPDX-License-Identifier: Apache-2.0
#include "train/known_inputs.h"

#include <cstring>

#include "base/error.h"
#include "check/check.h"
#include "check/reference.h"
#include "check/values/held.h"

namespace hocket::train {

KnownInputs::KnownInputs(const engine::Compiled& compiled, const std::vector<int32_t>& ranks) {
  const program::Program& program = compiled.program;
  check::CheckOptions options;
  options.on_write = [&](const check::OutputValue& written) {
    const program::Task& task = program.classes[written.task.cls].tasks[written.task.task];
    if (!program::is_communication(program.kind(task))) return;
    for (const int32_t rank : ranks) {
      if (program.class_of(rank) != written.task.cls) continue;
      const std::vector<check::Held> held = written.at(rank);
      if (held.size() != 1 || held[0].term < 0) continue;
      const check::Expr& term = written.reference.terms[held[0].term];
      if (term.kind != check::Expr::Kind::input) continue;
      // Inputs are lists of numbers.
      const graph::Tensor& tensor = compiled.reference.tensor(term.a);
      const bool whole = held[0].elements.length < 0 && held[0].addends.empty();
      if (!whole || held[0].dims.size() != 1 || held[0].dims[0].size != tensor.type.numel()) {
        continue;
      }
      const Input input{tensor.name, term.b};
      inputs_[input];
      brought_[{rank, written.task.task}].push_back(
          {written.output, input, held[0].dims[0].indices});
    }
  };
  check::check(program, compiled.reference, options);
}

void KnownInputs::feed(const engine::FeedMap& feeds, const engine::Compiled& compiled) {
  const auto symbols = graph::expected_values(compiled.program.symbols);
  for (auto& [input, values] : inputs_) {
    const auto& [name, micro_batch] = input;
    const engine::Feed* const given = feeds.find(name);
    HOCKET_CHECK(given != nullptr, "{} is not among the inputs given", name);
    const graph::TensorType type =
        compiled.reference.tensor(compiled.reference.find(name)).type.at(symbols);
    const std::span<const std::byte> of_micro_batch = engine::values_of(*given, type, micro_batch);
    values.assign(of_micro_batch.begin(), of_micro_batch.end());
  }
}

void KnownInputs::fill(int32_t rank, const comm::Call& call) const {
  const auto known = brought_.find({rank, call.task});
  if (known == brought_.end()) return;
  for (const Brought& brought : known->second) {
    const graph::TensorType& type = call.kind->out[brought.output];
    const auto bytes = [&](int64_t indices) { return static_cast<size_t>(type.bytes_of(indices)); };
    const std::vector<std::byte>& input = inputs_.at(brought.input);
    HOCKET_CHECK(!input.empty(), "{} was not fed", brought.input.first);
    auto* to = static_cast<std::byte*>(call.out[brought.output]);
    for (const graph::Run& run : brought.indices) {
      std::memcpy(to, input.data() + bytes(run.begin), bytes(run.length));
      to += bytes(run.length);
    }
  }
}

}  // namespace hocket::train
