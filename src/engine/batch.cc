// SPDX-License-Identifier: Apache-2.0
#include "engine/batch.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "graph/names.h"
#include "program/contract.h"

namespace hocket::engine {

namespace {

namespace names = graph::names;

/// Tokens of a micro-batch over all ranks in a step where symbols have these values; 0 for a
/// program that reads none (made by hand).
int64_t tokens_per_micro_batch(const Compiled& compiled, std::span<const int64_t> values) {
  const graph::TensorId id = compiled.reference.find(names::kTokens);
  return id == graph::kNone ? 0 : compiled.reference.tensor(id).type.at(values).numel();
}

/// Copies what the rank holds of a full input; nothing if it does not read it.
void feed_input(const std::string& name, int32_t micro_batch, const void* full,
                const Compiled& compiled, int32_t rank, runtime::Executor& executor) {
  if (!executor.has(name, micro_batch)) return;
  const graph::Tensor& tensor = compiled.reference.tensor(compiled.reference.find(name));
  const auto bytes = [&](int64_t n) { return tensor.type.bytes_of(n); };
  const auto* from = static_cast<const std::byte*>(full);
  auto* to = static_cast<std::byte*>(executor.input(name, micro_batch));
  program::for_each_run(
      executor.buffer(name, micro_batch), name, tensor.type.at(executor.symbol_values()),
      compiled.program, rank, [&](int64_t begin, int64_t count, int64_t local) {
        std::memcpy(to + bytes(local), from + bytes(begin), static_cast<size_t>(bytes(count)));
      });
}

}  // namespace

Hyper Hyper::of(const TrainSection& train, double lr, int64_t step) {
  const auto t = static_cast<double>(step);
  return {lr, 1 - std::pow(train.beta1, t), 1 - std::pow(train.beta2, t)};
}

Batch::Batch(int64_t rows, int64_t seq_len)
    : rows(rows),
      seq_len(seq_len),
      tokens(static_cast<size_t>(rows * seq_len), 0),
      targets(tokens.size(), data::kIgnoredTarget),
      positions(tokens.size(), 0) {}

data::SequenceOut Batch::row(int64_t r) {
  const auto part = [&](std::vector<int32_t>& all) {
    return std::span(all).subspan(static_cast<size_t>(r * seq_len), static_cast<size_t>(seq_len));
  };
  return {part(tokens), part(targets), part(positions)};
}

int64_t Batch::num_targets(const std::vector<bool>& of_rows) const {
  int64_t count = 0;
  for (size_t i = 0; i < targets.size(); ++i) {
    const bool counts = of_rows.empty() || of_rows[i / static_cast<size_t>(seq_len)];
    count += counts && targets[i] >= 0 ? 1 : 0;
  }
  return count;
}

RowsRead rows_read(const Compiled& compiled, const std::vector<int32_t>& ranks, int64_t rows,
                   int64_t seq_len) {
  RowsRead read;
  read.here.assign(static_cast<size_t>(rows), false);
  read.first = read.here;
  std::vector<bool> seen = read.here;
  const program::Program& program = compiled.program;
  const int64_t rows_per_micro_batch = rows / program.num_micro_batches;
  for (int32_t rank = 0; rank < program.num_ranks(); ++rank) {
    const bool here = std::binary_search(ranks.begin(), ranks.end(), rank);
    std::vector<bool> of_rank(static_cast<size_t>(rows), false);
    for (const program::Buffer& buffer : program.classes[program.class_of(rank)].buffers) {
      if (buffer.kind != program::BufferKind::input) continue;
      for (const char* name : {names::kTokens, names::kTargets, names::kPositions}) {
        if (!program::holds(buffer, name)) continue;
        const graph::Tensor& tensor = compiled.reference.tensor(compiled.reference.find(name));
        program::for_each_run(
            buffer, name, tensor.type, program, rank, [&](int64_t begin, int64_t count, int64_t) {
              const int64_t before = buffer.micro_batch * rows_per_micro_batch;
              for (int64_t row = begin / seq_len; row * seq_len < begin + count; ++row) {
                of_rank[static_cast<size_t>(before + row)] = true;
              }
            });
      }
    }
    for (size_t row = 0; row < of_rank.size(); ++row) {
      if (!of_rank[row]) continue;
      read.here[row] = read.here[row] || here;
      read.first[row] = read.first[row] || (here && !seen[row]);
      seen[row] = true;
    }
  }
  return read;
}

Batch empty_batch(const Compiled& compiled, int64_t seq_len) {
  const int64_t tokens =
      tokens_per_micro_batch(compiled, graph::expected_values(compiled.program.symbols)) *
      compiled.program.num_micro_batches;
  HOCKET_CHECK(tokens % seq_len == 0, "{} tokens a step in rows of {}", tokens, seq_len);
  return Batch(tokens / seq_len, seq_len);
}

void for_each_input(
    const Batch& batch, const Compiled& compiled, std::span<const int64_t> symbol_values,
    const std::function<void(const char* name, int32_t micro_batch, const void* full)>& visit) {
  const int64_t per_micro_batch = tokens_per_micro_batch(compiled, symbol_values);
  const int32_t micro_batches = compiled.program.num_micro_batches;
  HOCKET_CHECK(batch.rows * batch.seq_len == per_micro_batch * micro_batches,
               "{} rows of {} tokens for {} micro-batches of {}", batch.rows, batch.seq_len,
               micro_batches, per_micro_batch);
  std::vector<int64_t> numbers(static_cast<size_t>(per_micro_batch));
  for (int32_t m = 0; m < micro_batches; ++m) {
    const int64_t at = m * per_micro_batch;
    std::iota(numbers.begin(), numbers.end(), batch.first_token + at);
    visit(names::kTokenNumbers, m, numbers.data());
    visit(names::kTokens, m, batch.tokens.data() + at);
    visit(names::kTargets, m, batch.targets.data() + at);
    visit(names::kPositions, m, batch.positions.data() + at);
  }
  const double hyper[3] = {batch.hyper.lr, batch.hyper.bias1, batch.hyper.bias2};
  visit(names::kLossScale, program::kNone, &batch.loss_scale);
  visit(names::kHyper, program::kNone, hyper);
}

void feed(const Batch& batch, const Compiled& compiled, int32_t rank, runtime::Executor& executor) {
  for_each_input(batch, compiled, executor.symbol_values(),
                 [&](const char* name, int32_t micro_batch, const void* full) {
                   feed_input(name, micro_batch, full, compiled, rank, executor);
                 });
}

}  // namespace hocket::engine
