// SPDX-License-Identifier: Apache-2.0
#include "train/sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/utf8.h"
#include "engine/params.h"
#include "graph/names.h"
#include "program/contract.h"
#include "program/memory.h"

namespace hocket::train {

namespace {

constexpr int64_t kPromptTokens = 32;   // of a prompt that is taken from the data
constexpr int64_t kSampleTokens = 160;  // of a sample, at most

}  // namespace

int32_t draw(const std::vector<double>& logits, const GenerateOptions& options, uint64_t position) {
  // Tokens in falling order of their logits (ties: the smaller id); of these the first top_k, of
  // these as many as it takes to make up top_p of their probability, at least one; then one of them
  // by a random number that depends on seed and position alone.
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
  double u = uniform(options.seed, hash_name("sample"), position) * kept;
  for (size_t i = 0; i < n; ++i) {
    if ((u -= p[i]) < 0) return order[i];
  }
  return order[n - 1];
}

namespace {

/// The prompt's tokens behind the end of text, after which text begins in training. Error: there is
/// nothing to begin with, or the tokenizer is of a larger vocabulary.
std::vector<int32_t> prompt_ids(const engine::Run& run, const data::Tokenizer& tokenizer,
                                const std::string& prompt) {
  std::vector<int32_t> ids;
  if (tokenizer.eos_id() >= 0) {
    ids.push_back(tokenizer.eos_id());
  }
  for (int32_t id : tokenizer.encode(prompt)) {
    ids.push_back(id);
  }
  if (ids.empty()) fail("generate", "the prompt is empty and the tokenizer has no end of text");
  for (int32_t id : ids) {
    if (id >= run.model.vocab_size) {
      fail("generate", "the tokenizer gives token {}; the model has {}", id, run.model.vocab_size);
    }
  }
  return ids;
}

/// Runs ids[begin, begin + count) behind the `begin` tokens in the cache; returns the logits of the
/// last.
std::vector<double> forward(engine::Session& session, const engine::Run& run,
                            const std::vector<int32_t>& ids, int64_t begin, int64_t count) {
  engine::Batch batch(1, count);
  for (int64_t i = 0; i < count; ++i) {
    batch.positions[static_cast<size_t>(i)] = static_cast<int32_t>(begin + i);
    batch.tokens[static_cast<size_t>(i)] = ids[begin + i];
  }
  session.set_symbol(graph::names::kNewTokens, count);
  session.set_symbol(graph::names::kCacheLength, begin + count);
  session.feed(batch);
  session.step();
  const std::vector<std::byte> raw = session.collect(graph::names::kLogits, 0);
  const size_t vocab = static_cast<size_t>(run.model.vocab_size);
  const size_t last = static_cast<size_t>(count - 1) * vocab;
  std::vector<double> logits(vocab);
  for (size_t i = 0; i < vocab; ++i) {
    logits[i] = run.config.model.dtype == "f64"
                    ? reinterpret_cast<const double*>(raw.data())[last + i]
                    : reinterpret_cast<const float*>(raw.data())[last + i];
  }
  return logits;
}

}  // namespace

engine::Compiled compile_generation(const engine::Run& run, int64_t longest_text) {
  return engine::compile(run, engine::generation_options(run, longest_text));
}

program::Memory generation_memory(const engine::Compiled& generation, int64_t prompt,
                                  int64_t longest) {
  std::vector<int64_t> values;
  for (const graph::Symbol& symbol : generation.program.symbols) {
    const bool cache = symbol.name == graph::names::kCacheLength;
    values.push_back(std::clamp<int64_t>(cache ? longest : prompt, 1, symbol.bound));
  }
  return program::memory_of(generation.program, values).at(0);
}

std::string generate(
    const engine::Run& run, const data::Tokenizer& tokenizer,
    std::shared_ptr<kernels::Backend> backend,
    const std::function<void(const graph::Tensor&, int64_t, int64_t, void*)>& weights,
    const GenerateOptions& options) {
  // One program reads the prompt in pieces, and then one token after the other. `done` tokens are
  // in the cache, and `logits` are those of the last of them; what is drawn from them is the next
  // token.
  std::vector<int32_t> ids = prompt_ids(run, tokenizer, options.prompt);
  const int64_t prompt = static_cast<int64_t>(ids.size());
  runtime::LocalRanks ranks(1, std::move(backend), engine::rank_options(run));
  engine::Programs programs(run, ranks);
  engine::Session& session =
      programs.session(engine::generation_options(run, prompt + options.max_new_tokens));
  for (const graph::Tensor& tensor : session.graph().tensors) {
    if (tensor.kind != graph::TensorKind::param) continue;
    engine::scatter(tensor, session.program(), ranks, [&](int64_t begin, int64_t count, void* to) {
      weights(tensor, begin, count, to);
    });
  }
  engine::initialise(session.graph(), session.program(), 0, ranks);

  std::vector<double> logits;
  int64_t done = 0;
  while (done < prompt) {
    const int64_t piece = std::min(engine::kPrefill, prompt - done);
    logits = forward(session, run, ids, done, piece);
    done += piece;
  }
  std::string text;
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    if (!std::all_of(logits.begin(), logits.end(), [](double x) { return std::isfinite(x); })) {
      fail_run("generate",
               "the logits after {} tokens are not finite: nothing can be drawn from them",
               ids.size());
    }
    // Ids beyond the tokenizer's vocabulary have no text.
    logits.resize(std::min(logits.size(), static_cast<size_t>(tokenizer.vocab_size())));
    const int32_t id = draw(logits, options, static_cast<uint64_t>(ids.size()));
    if (id == tokenizer.eos_id()) break;
    ids.push_back(id);
    const std::string bytes = tokenizer.decode(std::span<const int32_t>(&ids.back(), 1));
    text += bytes;
    if (options.on_text) {
      options.on_text(bytes);
    }
    if (i + 1 < options.max_new_tokens) {
      logits = forward(session, run, ids, done++, 1);
    }
  }
  return text;
}

std::string prompt_from(const data::Dataset& dataset) {
  const data::TokenStream& stream = dataset.valid() ? *dataset.valid() : *dataset.train();
  const auto length = [&](int64_t d) {
    return stream.document_begin(d + 1) - stream.document_begin(d);
  };
  // Of a short document, half: something must be left to say.
  int64_t document = 0;
  for (int64_t d = stream.documents(); d-- > 0;) {
    if (length(d) >= 2 * kPromptTokens) {
      document = d;
    }
  }
  std::vector<int32_t> ids(static_cast<size_t>(std::min(kPromptTokens, length(document) / 2)));
  stream.read(stream.document_begin(document), ids);
  std::string text = dataset.tokenizer().decode(ids);
  while (!text.empty() && !is_utf8(text)) {
    text.pop_back();  // a character that was cut
  }
  const size_t end = text.find_last_of('\n');
  if (end != text.npos && !trim(text.substr(0, end)).empty()) {
    text.resize(end + 1);
  }
  return text;
}

namespace {

/// Those of the tensors that are parameters.
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

std::string sample_prompt(const engine::Run& run, const data::Dataset& dataset) {
  const std::string& given = run.config.output.sample_prompt;
  return given.empty() ? prompt_from(dataset) : given;
}

}  // namespace

int64_t sample_bytes(const engine::Run& run, const engine::Compiled& training,
                     const data::Dataset& dataset) {
  // What lies in memory together: the parameters of the training, on all its ranks; the largest of
  // them in one piece; and the rank that generates, with two programs in one arena.
  const program::Program& program = training.program;
  const graph::Graph& graph = training.reference;
  int64_t bytes = 0, largest = 0;
  for (size_t c = 0; c < program.classes.size(); ++c) {
    const auto ranks = program.num_ranks(program::ClassId(c));
    for (const program::Buffer& buffer : program.classes[c].buffers) {
      const std::vector<graph::TensorId> params =
          buffer.kind == program::BufferKind::persistent
              ? params_in(graph, program::tensors_of(buffer.name, buffer.slots))
              : std::vector<graph::TensorId>{};
      for (const graph::TensorId id : params) {
        largest = std::max(largest, graph.tensor(id).type.bytes());
      }
      bytes += params.empty() ? 0 : ranks * program::whole_pages(buffer.type.bytes());
    }
  }
  const auto prompt = std::ssize(prompt_ids(run, dataset.tokenizer(), sample_prompt(run, dataset)));
  const int64_t longest = prompt + kSampleTokens;
  const engine::Compiled generation = compile_generation(run, longest);
  return bytes + largest + generation_memory(generation, prompt, longest).with_host();
}

diagnose::Sample sample_text(const engine::Run& run, engine::Programs& training,
                             const data::Dataset& dataset) {
  training.end_sessions();
  const graph::Graph& graph = training.compiled().reference;
  for (int32_t rank : training.ranks().ids()) {
    std::erase_if(training.ranks().at(rank).store().entries(), [&](const auto& entry) {
      return params_in(graph, program::tensors_of(entry.first, entry.second.slots)).empty();
    });
  }
  GenerateOptions options;
  options.prompt = sample_prompt(run, dataset);
  options.max_new_tokens = kSampleTokens;
  std::string gathered;  // the parameter that lies in `full`
  std::vector<std::byte> full;
  auto weights = [&](const graph::Tensor& tensor, int64_t begin, int64_t count, void* to) {
    if (gathered != tensor.name) {
      const graph::TensorId id = graph.find(tensor.name);
      HOCKET_CHECK(id != graph::kNone, "the training has no {}", tensor.name);
      full = {};
      full = engine::gather(graph.tensor(id), training.compiled().program, training.ranks());
      gathered = tensor.name;
    }
    std::memcpy(to, full.data() + tensor.type.bytes_of(begin),
                static_cast<size_t>(tensor.type.bytes_of(count)));
  };
  std::string text;
  const std::string raw =
      generate(run, dataset.tokenizer(), kernels::cpu_backend(), weights, options);
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
  return {options.prompt, text,
          fmt::format("temperature {}, top-p {}, seed {}", options.temperature, options.top_p,
                      options.seed),
          ""};
}

}  // namespace hocket::train
