// SPDX-License-Identifier: Apache-2.0
#include "train/sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/math.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/utf8.h"
#include "data/model_text.h"
#include "engine/params.h"
#include "graph/elements.h"
#include "graph/names.h"
#include "program/buffer_contents.h"
#include "program/memory.h"
#include "train/evaluate.h"

namespace hocket::train {

int32_t draw(const std::vector<double>& logits, const GenerateOptions& options, uint64_t position) {
  // Sorts tokens by falling logits (ties: the smaller id), takes the first top_k, of these the
  // fewest with probability top_p, at least one; then draws one by a random number of seed and
  // position.
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  auto by_logit = [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  if (options.temperature <= 0) return *std::min_element(order.begin(), order.end(), by_logit);
  std::sort(order.begin(), order.end(), by_logit);
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(order.size())) {
    order.resize(static_cast<size_t>(options.top_k));
  }
  const double top = logits[order[0]];
  std::vector<double> p;
  double sum = 0;
  for (int32_t id : order) {
    p.push_back(std::exp((logits[id] - top) / options.temperature));
    sum += p.back();
  }
  double kept = 0;
  size_t n = 0;
  while (n < p.size() && (n == 0 || kept < options.top_p * sum)) {
    kept += p[n++];
  }
  const uint64_t stream = hash_name("sample") + static_cast<uint64_t>(options.sample);
  double u = uniform(options.seed, stream, position) * kept;
  for (size_t i = 0; i < n; ++i) {
    if ((u -= p[i]) < 0) return order[i];
  }
  return order[n - 1];
}

namespace {

/// The least number of tokens of a step: all are multiples of it.
int64_t least_tokens(const program::Program& program) {
  const auto symbol =
      std::find_if(program.symbols.begin(), program.symbols.end(),
                   [](const auto& each) { return each.name == graph::names::kNewTokens; });
  HOCKET_CHECK(symbol != program.symbols.end(), "the program does not generate");
  return symbol->divisor;
}

/// Runs ids[begin, begin + count) after the `begin` tokens in the cache. Rows without a token pad
/// to a multiple for the ranks.
void forward(engine::Session& session, const std::vector<int32_t>& ids, int64_t begin,
             int64_t count) {
  const int64_t rows = round_up(count, least_tokens(session.program()));
  engine::Batch batch(1, rows);
  for (int64_t i = 0; i < rows; ++i) {
    const bool is_token = i < count;
    batch.positions[static_cast<size_t>(i)] = is_token ? static_cast<int32_t>(begin + i) : -1;
    batch.tokens[static_cast<size_t>(i)] = is_token ? ids[begin + i] : 0;
  }
  session.set_symbol(graph::names::kNewTokens, rows);
  session.set_symbol(graph::names::kCacheLength, begin + count);
  session.feed(batch);
  session.step();
}

/// The logits of the first row of the step that was run.
std::vector<double> first_logits(const engine::Session& session, const engine::Run& run) {
  const std::vector<std::byte> raw = session.collect(graph::names::kLogits, 0);
  std::vector<double> logits(static_cast<size_t>(run.model.vocab_size));
  graph::read_numbers(graph::parse_dtype(run.config.model.dtype), raw.data(), std::span(logits));
  return logits;
}

}  // namespace

engine::Compiled compile_generation(const engine::Run& run, int64_t longest_text) {
  engine::Compiled compiled = engine::compile(engine::generation(run, longest_text));
  expect_proven(run, compiled, "generates");
  return compiled;
}

std::vector<program::Memory> generation_memory(const engine::Compiled& generation, int64_t prompt,
                                               int64_t longest) {
  std::vector<int64_t> values;
  for (const graph::Symbol& symbol : generation.program.symbols) {
    const bool cache = symbol.name == graph::names::kCacheLength;
    values.push_back(std::min(
        round_up(std::max<int64_t>(cache ? longest : prompt, 1), symbol.divisor), symbol.bound));
  }
  return program::memory_of(generation.program, values);
}

bool StoppedText::append(std::string_view bytes) {
  // A stop string that ends in the new bytes began at most its length before them.
  const size_t before = text_.size();
  text_ += bytes;
  size_t first_end = text_.npos, begin = text_.npos;
  for (const std::string& stop : stops_) {
    const size_t from = before >= stop.size() ? before - stop.size() + 1 : 0;
    const size_t at = text_.find(stop, from);
    if (at == text_.npos) continue;
    const size_t end = at + stop.size();
    if (end < first_end || (end == first_end && at < begin)) {
      first_end = end;
      begin = at;
      stop_ = stop;
    }
  }
  if (begin != text_.npos) {
    text_.resize(begin);
    pass_on(begin);
    return false;
  }
  pass_on(settled());
  return true;
}

size_t StoppedText::settled() const {
  size_t end = text_.size();
  for (const std::string& stop : stops_) {
    for (size_t held = std::min(stop.size() - 1, text_.size()); held > 0; --held) {
      if (text_.ends_with(std::string_view(stop).substr(0, held))) {
        end = std::min(end, text_.size() - held);
        break;
      }
    }
  }
  // A character of up to 4 bytes whose last ones are yet to come.
  constexpr size_t kLongestCharacter = 4;
  for (size_t at = end - std::min(end, kLongestCharacter - 1); at < end; ++at) {
    const auto lead = static_cast<unsigned char>(text_[at]);
    const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    if (at + length > end) return at;
  }
  return end;
}

void StoppedText::pass_on(size_t end) {
  if (end <= passed_) return;
  if (on_text_) {
    on_text_(std::string_view(text_).substr(passed_, end - passed_));
  }
  passed_ = end;
}

namespace {

/// Text of each next token: of an answer without special tokens, and its first token without the
/// blank that begins a text.
class TokenText {
 public:
  TokenText(const data::Tokenizer& tokenizer, bool is_answer)
      : tokenizer_(tokenizer), begins_(is_answer) {
    for (const data::AddedToken& added : tokenizer.spec().added) {
      if (is_answer && added.special) {
        left_out_.insert(added.id);
      }
    }
  }
  std::string next(int32_t id) {
    if (left_out_.contains(id)) return "";
    const bool first = std::exchange(begins_, false);
    return first ? tokenizer_.decode(std::span(&id, 1)) : std::string(tokenizer_.token_bytes(id));
  }

 private:
  const data::Tokenizer& tokenizer_;
  std::set<int32_t> left_out_;
  bool begins_;
};

}  // namespace

Generator::Generator(const engine::Run& run, const data::Tokenizer& tokenizer,
                     engine::Session& session)
    : run_(run), tokenizer_(tokenizer), session_(session) {
  engine::initialise(session.graph(), session.program(), 0, session.store());
}

Generated Generator::run(const GenerateOptions& options) {
  // One program reads the prompt except its last token in pieces, and then one token after the
  // other. `done` tokens are in the cache. Only the logits of the last token are collected, which
  // crosses links between processes. They are the same on all processes, and so is the drawn token.
  std::vector<int32_t> ids = options.prompt;
  const int64_t prompt = std::ssize(ids);
  HOCKET_CHECK(prompt > 0, "an empty prompt");
  int64_t done =
      std::mismatch(ids.begin(), ids.end() - 1, cached_.begin(), cached_.end()).first - ids.begin();
  while (done < prompt - 1) {
    const int64_t piece = std::min(engine::kPrefill, prompt - 1 - done);
    forward(session_, ids, done, piece);
    done += piece;
  }
  Generated out;
  StoppedText text(options.stops, options.on_text);
  TokenText token_text(tokenizer_, options.answer);
  const std::set<int32_t> stop_tokens(options.stop_tokens.begin(), options.stop_tokens.end());
  for (int64_t i = 0; i < options.max_new_tokens && !out.stopped; ++i) {
    forward(session_, ids, done++, 1);
    std::vector<double> logits = first_logits(session_, run_);
    if (!std::all_of(logits.begin(), logits.end(), [](double x) { return std::isfinite(x); })) {
      fail_run("generate",
               "the logits after {} tokens are not finite: nothing can be drawn from them",
               ids.size());
    }
    // Ids beyond the tokenizer's vocabulary have no text.
    logits.resize(std::min(logits.size(), static_cast<size_t>(tokenizer_.vocab_size())));
    const int32_t id = draw(logits, options, static_cast<uint64_t>(ids.size()));
    if (stop_tokens.contains(id)) {
      out.stopped = true;
      out.stop_token = id;
      break;
    }
    ids.push_back(id);
    out.ids.push_back(id);
    out.stopped = !text.append(token_text.next(id));
  }
  text.finish();
  out.text = text.text();
  out.stop = text.stop();
  cached_.assign(ids.begin(), ids.begin() + done);
  return out;
}

namespace {

/// Returns the tensors that are parameters.
std::vector<graph::TensorId> params_in(const graph::Graph& graph,
                                       const std::vector<std::string>& names) {
  std::vector<graph::TensorId> params;
  for (const std::string& name : names) {
    const graph::TensorId id = graph.find(name);
    if (id != graph::kNone && graph.tensor(id).kind == graph::TensorKind::param) {
      params.push_back(id);
    }
  }
  return params;
}

Prompt sample_prompt(const engine::Run& run, const TrainingData& data) {
  const std::string& given = run.config.output.sample_prompt;
  return data.prompt_of(given.empty() ? data.sample_prompt() : given);
}

}  // namespace

std::vector<int64_t> sample_memory(const engine::Run& run, const engine::Compiled& training,
                                   const TrainingData& data) {
  // Memory at the same time: the generating program with its parameters; if their layout differs,
  // the training's, and between processes messages in flight: the source, the copy to send, and the
  // received one.
  const int64_t prompt = std::ssize(sample_prompt(run, data).ids);
  const int64_t longest = prompt + run.config.output.sample_tokens;
  const engine::Compiled generation = compile_generation(run, longest);
  const std::vector<program::Memory> memory = generation_memory(generation, prompt, longest);
  const program::Program& program = training.program;
  const bool alike = program::held_otherwise(program, generation.program).empty();
  const int64_t sent = run.ranks != engine::Ranks::local ? 3 * engine::kMaxInFlightBytes : 0;
  std::vector<int64_t> bytes;
  for (int32_t rank = 0; rank < generation.program.num_ranks(); ++rank) {
    bytes.push_back(memory[generation.program.class_of(rank).value()].with_host());
    if (alike) continue;
    bytes.back() += sent;
    for (const program::Buffer& buffer : program.classes[program.class_of(rank)].buffers) {
      const bool holds =
          buffer.kind == program::BufferKind::persistent &&
          !params_in(training.reference, program::tensors_of(buffer.name, buffer.slots)).empty();
      bytes.back() += holds ? program::whole_pages(buffer.type.bytes()) : 0;
    }
  }
  return bytes;
}

diagnose::Sample sample_text(const engine::Run& run, engine::Programs& training,
                             const TrainingData& data) {
  training.end_sessions();
  const graph::Graph& graph = training.compiled().reference;
  const auto keep_parameters = [&] {
    for (int32_t rank : training.ranks().ids()) {
      std::erase_if(training.store().at(rank).entries(), [&](const auto& entry) {
        return params_in(graph, program::tensors_of(entry.first, entry.second.slots)).empty();
      });
    }
  };
  keep_parameters();
  GenerateOptions options;
  const Prompt prompt = sample_prompt(run, data);
  options.prompt = prompt.ids;
  options.max_new_tokens = run.config.output.sample_tokens;
  options.stop_tokens = {data.tokenizer().eos_id()};
  std::string raw;
  {
    const int64_t longest = std::ssize(options.prompt) + options.max_new_tokens;
    const engine::ProgramSpec spec = engine::generation(run, longest);
    training.replace(spec, compile_generation(run, longest));
    engine::ParameterReader generation(training, spec, &training.compiled());
    generation.update();
    raw = Generator(run, data.tokenizer(), generation.session()).run(options).text;
  }
  training.end_sessions();
  keep_parameters();  // not the caches
  std::string text;
  // Sampled bytes need not be UTF-8; terminals and pages do.
  for (size_t at = 0; at < raw.size();) {
    const int n = utf8_length(raw, at);
    if (n > 0) {
      text.append(raw, at, static_cast<size_t>(n));
    } else {
      append_utf8(0xFFFD, &text);
    }
    at += static_cast<size_t>(std::max(n, 1));
  }
  return {prompt.text, text,
          fmt::format("temperature {}, top-p {}, seed {}", options.temperature, options.top_p,
                      options.seed),
          ""};
}

}  // namespace hocket::train
