// SPDX-License-Identifier: Apache-2.0
#include "serve/session_stepper.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/math.h"
#include "graph/names.h"

namespace hocket::serve {

namespace {

namespace names = graph::names;

/// Messages of process 0 to the others, by their first byte.
enum Message : char { kStep = 's', kAlive = 'a', kAsk = 'q', kEnd = 'e' };

/// Writes or reads the vectors of a StepInput, one after the other, lengths first.
class Packer {
 public:
  template <class T>
  void operator()(const std::vector<T>& values) {
    const auto count = static_cast<int64_t>(values.size());
    append(&count, sizeof count);
    append(values.data(), values.size() * sizeof(T));
  }
  std::string take() { return std::move(bytes_); }

 private:
  void append(const void* from, size_t bytes) {
    bytes_.append(static_cast<const char*>(from), bytes);
  }
  std::string bytes_ = std::string(1, kStep);
};

class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : bytes_(bytes.substr(1)) {}
  template <class T>
  void operator()(std::vector<T>& values) {
    int64_t count = 0;
    copy(&count, sizeof count);
    values.resize(static_cast<size_t>(count));
    copy(values.data(), values.size() * sizeof(T));
  }

 private:
  void copy(void* to, size_t bytes) {
    HOCKET_CHECK(bytes <= bytes_.size(), "a step's message is cut short");
    std::memcpy(to, bytes_.data(), bytes);
    bytes_.remove_prefix(bytes);
  }
  std::string_view bytes_;
};

template <class Visit, class Input>
void visit(Visit& each, Input& input, std::vector<int64_t>& counts) {
  // `counts`: sequences and rows, whose vectors follow; and whether alternatives are wanted.
  each(counts);
  each(input.part_tokens);
  each(input.tokens);
  each(input.positions);
  each(input.sequences);
  each(input.copies);
  each(input.rows);
  each(input.settings);
  each(input.draws);
  each(input.ranges);
  each(input.changed_tokens);
  each(input.change_counts);
  each(input.change_biases);
}

std::string pack(const StepInput& input) {
  std::vector<int64_t> counts{std::ssize(input.pages), std::ssize(input.masks),
                              input.alternatives ? 1 : 0};
  Packer packer;
  visit(packer, input, counts);
  for (const auto& pages : input.pages) {
    packer(pages);
  }
  for (const auto& mask : input.masks) {
    packer(mask);
  }
  return packer.take();
}

StepInput unpack(std::string_view bytes) {
  StepInput input;
  std::vector<int64_t> counts;
  Unpacker unpacker(bytes);
  visit(unpacker, input, counts);
  input.pages.resize(static_cast<size_t>(counts.at(0)));
  input.masks.resize(static_cast<size_t>(counts.at(1)));
  input.alternatives = counts.at(2) != 0;
  for (auto& pages : input.pages) {
    unpacker(pages);
  }
  for (auto& mask : input.masks) {
    unpacker(mask);
  }
  return input;
}

int64_t divisor_of(const program::Program& program) {
  const auto symbol = std::find_if(program.symbols.begin(), program.symbols.end(),
                                   [](const auto& each) { return each.name == names::kNewTokens; });
  HOCKET_CHECK(symbol != program.symbols.end(), "the program does not generate");
  return symbol->divisor;
}

/// Appends values up to `size`.
template <class T>
std::vector<T> padded(std::vector<T> values, int64_t size, T value) {
  values.resize(static_cast<size_t>(size), value);
  return values;
}

/// Pads the tokens of every part to as many as the longest part has.
class Parts {
 public:
  /// `divisor`: of the tokens of all parts.
  Parts(const StepInput& input, int64_t parts, int64_t divisor)
      : counts_(input.part_tokens), of_sequence_(input.pages.size()) {
    HOCKET_CHECK(std::ssize(counts_) == parts && divisor % parts == 0,
                 "{} parts of tokens, expected {}, in steps of {}", counts_.size(), parts, divisor);
    const int64_t most = *std::max_element(counts_.begin(), counts_.end());
    each_ = round_up(std::max<int64_t>(most, 1), divisor / parts);
    auto sequence = input.sequences.begin();
    for (int64_t part = 0; part < parts; ++part) {
      for (int64_t i = 0; i < counts_[static_cast<size_t>(part)]; ++i) {
        of_sequence_[static_cast<size_t>(*sequence++)] = part;
      }
    }
  }
  int64_t tokens() const { return each_ * std::ssize(counts_); }
  int64_t of_sequence(size_t sequence) const { return of_sequence_[sequence]; }
  std::vector<int32_t> spread(const std::vector<int32_t>& values, int32_t padding) const {
    std::vector<int32_t> made(static_cast<size_t>(tokens()), padding);
    auto from = values.begin();
    for (size_t part = 0; part < counts_.size(); ++part) {
      std::copy_n(from, counts_[part], made.begin() + static_cast<std::ptrdiff_t>(part) * each_);
      from += counts_[part];
    }
    return made;
  }
  /// The places of tokens after spread().
  std::vector<int32_t> places(std::vector<int32_t> tokens) const {
    for (int32_t& token : tokens) {
      int64_t begin = 0, place = 0;
      for (const int64_t count : counts_) {
        if (token < begin + count) break;
        begin += count;
        place += each_;
      }
      token = static_cast<int32_t>(place + token - begin);
    }
    return tokens;
  }

 private:
  const std::vector<int64_t> counts_;
  std::vector<int64_t> of_sequence_;
  int64_t each_ = 0;  ///< places of a part
};

/// Returns the experts of a step's first `tokens` tokens, [tokens, width], those of a layer behind
/// those of the layer before. All processes call.
std::vector<int32_t> routes_of(const engine::Session& session, const Parts& parts, int64_t tokens) {
  std::vector<int32_t> places(static_cast<size_t>(tokens));
  std::iota(places.begin(), places.end(), 0);
  places = parts.places(std::move(places));
  std::vector<std::vector<int32_t>> layers;
  size_t width = 0;
  for (const graph::TensorId id : session.graph().outputs) {
    const std::string& name = session.graph().tensor(id).name;
    if (!name.starts_with(names::kRoutesOf)) continue;
    layers.push_back(session.collect_as<int32_t>(name, 0));
    width += layers.back().size() / static_cast<size_t>(parts.tokens());
  }
  std::vector<int32_t> all;
  all.reserve(width * places.size());
  for (const int32_t place : places) {
    for (const std::vector<int32_t>& layer : layers) {
      const size_t k = layer.size() / static_cast<size_t>(parts.tokens());
      const auto begin = layer.begin() + static_cast<std::ptrdiff_t>(k) * place;
      all.insert(all.end(), begin, begin + static_cast<std::ptrdiff_t>(k));
    }
  }
  return all;
}

}  // namespace

models::Generation generation_of(const StepLimits& limits) {
  return {.sequences = limits.sequences,
          .longest = limits.longest,
          .pages = limits.pages,
          .rows = limits.rows,
          .changes = limits.changes,
          .alternatives = limits.alternatives,
          .vocab = limits.vocab,
          .head_parts = limits.head_parts,
          .routes = limits.routes};
}

engine::ProgramSpec generation_spec(const engine::Run& run, const StepLimits& limits) {
  return engine::generation(run, limits.tokens, generation_of(limits));
}

SessionStepper::SessionStepper(engine::Session& session, StepLimits limits)
    : session_(session), limits_(std::move(limits)), divisor_(divisor_of(session.program())) {}

SessionStepper::~SessionStepper() {
  try {
    if (!failed_) {
      broadcast(std::string(1, kEnd));
    }
  } catch (const std::exception&) {
    // They notice that this process is gone.
  }
}

void SessionStepper::broadcast(const std::string& message) {
  comm::Processes& processes = session_.ranks().processes();
  if (processes.size() > 1 && processes.index() == 0) {
    processes.broadcast(message);
  }
}

void SessionStepper::stay_alive() { broadcast(std::string(1, kAlive)); }

StepOutput SessionStepper::step(const StepInput& input) {
  try {
    if (session_.ranks().processes().size() > 1) {
      broadcast(pack(input));
    }
    return run(input);
  } catch (...) {
    failed_ = true;
    throw;
  }
}

std::vector<std::string> SessionStepper::ask(const std::string& mine) {
  comm::Processes& processes = session_.ranks().processes();
  if (processes.size() == 1) return {mine};
  try {
    broadcast(std::string(1, kAsk));
    return processes.all_gather(mine);
  } catch (...) {
    failed_ = true;
    throw;
  }
}

void SessionStepper::follow(const std::function<std::string()>& answer) {
  comm::Processes& processes = session_.ranks().processes();
  failed_ = true;  // this process has nobody to tell
  for (;;) {
    const std::string message = processes.broadcast("");
    if (message.empty() || message[0] == kEnd) return;
    if (message[0] == kStep) {
      run(unpack(message));
    } else if (message[0] == kAsk) {
      processes.all_gather(answer ? answer() : "");
    }
  }
}

StepOutput SessionStepper::run(const StepInput& input) {
  const Parts parts(input, limits_.parts, divisor_);
  const int64_t T = parts.tokens();
  const int64_t R = std::max<int64_t>(std::ssize(input.pages), 1);
  const int64_t N = std::max<int64_t>(std::ssize(input.rows), 1);
  const int64_t C = std::max<int64_t>(std::ssize(input.changed_tokens), 1);
  size_t most_pages = 1, words = 1;
  for (const auto& pages : input.pages) {
    most_pages = std::max(most_pages, pages.size());
  }
  for (const auto& mask : input.masks) {
    words = std::max(words, mask.size());
  }
  const auto B = static_cast<int64_t>(most_pages), W = static_cast<int64_t>(words);
  std::vector<int32_t> table(static_cast<size_t>(R * B), -1);
  std::vector<int32_t> copies = padded(input.copies, R * 2, -1);
  for (size_t r = 0; r < input.pages.size(); ++r) {
    const int64_t first = parts.of_sequence(r) * limits_.pages;
    if (copies[2 * r] >= 0) {
      copies[2 * r] += static_cast<int32_t>(first);
    }
    std::transform(input.pages[r].begin(), input.pages[r].end(), table.begin() + r * most_pages,
                   [&](int32_t page) { return static_cast<int32_t>(first + page); });
  }
  std::vector<int32_t> masks(static_cast<size_t>(N * W), 0);
  for (size_t n = 0; n < input.masks.size(); ++n) {
    const auto& mask = input.masks[n];
    std::transform(mask.begin(), mask.end(), masks.begin() + static_cast<std::ptrdiff_t>(n * words),
                   [](uint32_t bits) { return static_cast<int32_t>(bits); });
  }
  engine::FeedMap feeds;
  feeds.keep(names::kTokens, parts.spread(input.tokens, 0));
  feeds.keep(names::kPositions, parts.spread(input.positions, -1));
  feeds.keep(names::kSequences, parts.spread(input.sequences, 0));
  feeds.keep(names::kPageTable, std::move(table));
  feeds.keep(names::kPageCopies, std::move(copies));
  feeds.keep(names::kRows, padded(parts.places(input.rows), N, -1));
  feeds.keep(names::kSampleSettings, padded(input.settings, N * ops::kNumSettings, 0.0));
  feeds.keep(names::kSampleDraws, padded(input.draws, N * ops::kNumDraws, int64_t{-1}));
  feeds.keep(names::kSampleMask, std::move(masks));
  feeds.keep(names::kSampleRanges, padded(input.ranges, N * 2, 0));
  feeds.keep(names::kChangedTokens, padded(input.changed_tokens, C, 0));
  feeds.keep(names::kChangeCounts, padded(input.change_counts, C, -1));
  feeds.keep(names::kChangeBiases, padded(input.change_biases, C, 0.0));
  for (const auto& [name, value] : {std::pair{names::kNewTokens, T},
                                    {names::kNumSequences, R},
                                    {names::kTablePages, B},
                                    {names::kNumRows, N},
                                    {names::kMaskWords, W},
                                    {names::kNumChanges, C}}) {
    session_.set_symbol(name, value);
  }
  session_.feed(feeds);
  session_.step();
  StepOutput output;
  output.tokens = session_.collect_as<int32_t>(names::kSampled, 0);
  output.logprobs = session_.collect_as<double>(names::kSampledLogprobs, 0);
  if (input.alternatives) {
    output.alternatives = session_.collect_as<int32_t>(names::kAlternatives, 0);
    output.alternative_logprobs = session_.collect_as<double>(names::kAlternativeLogprobs, 0);
    output.num_alternatives = std::ssize(output.alternatives) / N;
  }
  if (limits_.routes) {
    output.routes = routes_of(session_, parts, std::ssize(input.tokens));
  }
  return output;
}

}  // namespace hocket::serve
