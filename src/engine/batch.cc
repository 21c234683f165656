// SPDX-License-Identifier: Apache-2.0
#include "engine/batch.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "autodiff/autodiff.h"
#include "base/error.h"
#include "engine/placement.h"
#include "graph/names.h"

namespace hocket::engine {

namespace {

namespace names = graph::names;

/// Tokens of a micro-batch over all ranks in a step where symbols have these values; 0 for a
/// program that reads none (made by hand).
int64_t tokens_per_micro_batch(const Compiled& compiled, std::span<const int64_t> values) {
  const graph::TensorId id = compiled.reference.find(names::kTokens);
  return id == graph::kNone ? 0 : compiled.reference.tensor(id).type.at(values).numel();
}

}  // namespace

std::vector<double> hyper_of(const OptimizerSection& optimizer, double lr, int64_t step) {
  return autodiff::hyper_of(optimizer_of(optimizer, {}), lr, step);
}

Batch::Batch(int64_t rows, int64_t seq_len)
    : rows(rows),
      seq_len(seq_len),
      tokens(static_cast<size_t>(rows * seq_len), 0),
      targets(tokens.size(), data::kIgnoredTarget),
      positions(tokens.size(), data::padding_position(0)) {}

data::SequenceOut Batch::row(int64_t r) {
  const auto part = [&](std::vector<int32_t>& all) {
    return std::span(all).subspan(static_cast<size_t>(r * seq_len), static_cast<size_t>(seq_len));
  };
  data::SequenceOut row{part(tokens), part(targets), part(positions)};
  if (!answers.empty()) {
    row.answers = part(answers);
  }
  return row;
}

int64_t Batch::num_targets(const std::vector<bool>& of_rows) const {
  int64_t count = 0;
  for (size_t i = 0; i < targets.size(); ++i) {
    const bool counts = of_rows.empty() || of_rows[i / static_cast<size_t>(seq_len)];
    count += counts && targets[i] >= 0 ? 1 : 0;
  }
  return count;
}

FeedMap Batch::feeds() const {
  FeedMap feeds = more;
  std::vector<int64_t> numbers(tokens.size());
  std::iota(numbers.begin(), numbers.end(), first_token);
  feeds.keep(names::kTokenNumbers, std::move(numbers));
  feeds.add(names::kTokens, std::span<const int32_t>(tokens));
  feeds.add(names::kTargets, std::span<const int32_t>(targets));
  // Padding is a document, too.
  std::vector<int32_t> places(positions.size()), is_token(positions.size());
  for (size_t i = 0; i < positions.size(); ++i) {
    is_token[i] = positions[i] >= 0 ? 1 : 0;
    places[i] = positions[i] >= 0 ? positions[i] : data::padding_position(positions[i]);
  }
  feeds.keep(names::kPositions, std::move(places));
  feeds.keep(names::kIsToken, std::move(is_token));
  feeds.add(names::kLossScale, std::span<const double>(&loss_scale, 1));
  feeds.add(names::kHyper, std::span<const double>(hyper));
  return feeds;
}

RowsRead rows_read(const Compiled& compiled, const std::vector<int32_t>& ranks, int64_t rows,
                   int64_t seq_len) {
  RowsRead read;
  read.here.assign(static_cast<size_t>(rows), false);
  read.first = read.here;
  std::vector<bool> seen = read.here;
  const program::Program& program = compiled.program;
  const int64_t rows_per_micro_batch = rows / program.num_micro_batches;
  std::vector<Placement> inputs;  // by micro-batch
  for (int32_t m = 0; m < program.num_micro_batches; ++m) {
    inputs.emplace_back(program, program::BufferKind::input, m);
  }
  for (int32_t rank = 0; rank < program.num_ranks(); ++rank) {
    const bool here = std::binary_search(ranks.begin(), ranks.end(), rank);
    std::vector<bool> of_rank(static_cast<size_t>(rows), false);
    for (int32_t m = 0; m < program.num_micro_batches; ++m) {
      for (const char* name : {names::kTokens, names::kTargets, names::kPositions}) {
        const graph::TensorId id = compiled.reference.find(name);
        if (id == graph::kNone) continue;
        for_each_held(compiled.reference.tensor(id), program,
                      inputs[static_cast<size_t>(m)].holders(name, {rank}), [&](const Held& held) {
                        const int64_t before = m * rows_per_micro_batch;
                        for (int64_t row = held.begin / seq_len;
                             row * seq_len < held.begin + held.count; ++row) {
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

}  // namespace hocket::engine
