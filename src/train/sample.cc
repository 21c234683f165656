// SPDX-License-Identifier: Apache-2.0
#include "train/sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/math.h"
#include "base/utf8.h"
#include "data/model_text.h"
#include "engine/params.h"
#include "program/buffer_contents.h"
#include "program/memory.h"
#include "serve/open.h"
#include "serve/scheduler.h"
#include "serve/session_stepper.h"

namespace hocket::train {

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

/// One text of a prompt and output.sample_tokens.
serve::StepLimits sample_limits(const engine::Run& run, const TrainingData& data, int64_t prompt) {
  constexpr int64_t kPrefill = 64;
  const int64_t longest = prompt + run.config.output.sample_tokens;
  return {.parts = engine::generation_parts(run),
          .tokens = kPrefill,
          .sequences = 1,
          .longest = longest,
          .pages = ceil_div(longest, serve::PagePool::kTokens),
          .rows = 1,
          .changes = 1,
          .alternatives = 1,
          .vocab = std::min<int64_t>(data.tokenizer().vocab_size(), run.model.vocab_size)};
}

/// Generates with a session on the parameters; in all processes but the first the text is empty.
std::string generate(engine::Session& session, const serve::StepLimits& limits,
                     const data::Tokenizer& tokenizer, serve::Request request) {
  engine::initialise(session.graph(), session.program(), 0, session.store());
  serve::SessionStepper stepper(session, limits);
  std::string text;
  if (session.ranks().processes().index() != 0) {
    stepper.follow();
    return text;
  }
  serve::Scheduler scheduler(stepper, &tokenizer, {});
  std::string error;
  scheduler.submit(1, std::move(request), [&](const serve::Update& update) {
    text += update.text;
    error = update.error;
  });
  while (scheduler.step()) {
  }
  if (!error.empty()) fail_run("sample", "{}", error);
  return text;
}

}  // namespace

std::string sample_prompt(const engine::Run& run, const TrainingData& data) {
  const std::string& given = run.config.output.sample_prompt;
  return given.empty() ? data.sample_prompt() : given;
}

std::vector<int64_t> sample_memory(const engine::Run& run, const engine::Compiled& training,
                                   const TrainingData& data) {
  // Memory at the same time: the generating program with its parameters; if their layout differs,
  // the training's, and between processes messages in flight: the source, the copy to send, and the
  // received one.
  const int64_t prompt = std::ssize(data.prompt_of(sample_prompt(run, data)).ids);
  const engine::Compiled generation =
      serve::compile_generation(run, sample_limits(run, data, prompt));
  const std::vector<program::Memory> memory = program::memory_of(generation.program);
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
  const Prompt prompt = data.prompt_of(sample_prompt(run, data));
  serve::Request request;
  request.prompt = prompt.ids;
  request.max_tokens = run.config.output.sample_tokens;
  if (data.tokenizer().eos_id() >= 0) {
    request.stop_tokens = {data.tokenizer().eos_id()};
  }
  request.sampling = {.temperature = 0.8, .top_p = 0.95, .seed = 1};
  const serve::Sampling sampling = request.sampling;
  std::string raw;
  {
    const serve::StepLimits limits = sample_limits(run, data, std::ssize(prompt.ids));
    const engine::ProgramSpec spec = serve::generation_spec(run, limits);
    training.replace(spec, serve::compile_generation(run, limits));
    engine::ParameterReader generation(training, spec, &training.compiled());
    generation.update();
    raw = generate(generation.session(), limits, data.tokenizer(), std::move(request));
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
          fmt::format("temperature {}, top-p {}, seed {}", sampling.temperature, sampling.top_p,
                      sampling.seed),
          ""};
}

}  // namespace hocket::train
