// SPDX-License-Identifier: Apache-2.0
#include "serve/open.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/math.h"
#include "base/text.h"
#include "checkpoint/model_weights.h"
#include "comm/run_on_all.h"
#include "engine/memory.h"
#include "engine/params.h"
#include "engine/programs.h"
#include "engine/weights.h"
#include "program/memory.h"
#include "serve/engine.h"

namespace hocket::serve {

int64_t page_bytes(const engine::Run& run) {
  const models::ModelConfig& model = run.model;
  const int64_t element = graph::size_of(graph::parse_dtype(run.config.model.dtype));
  return 2 * model.num_layers * model.num_kv_heads * model.head_dim * PagePool::kTokens * element;
}

namespace {

double default_cache_memory() {
  return std::min(4e9, 0.25 * static_cast<double>(engine::available_memory()));
}

/// Returns the same options for all processes, with the memory of the smallest. Throws Error if
/// they differ in other sizes.
EngineOptions agreed(EngineOptions options, comm::Processes& processes) {
  if (processes.size() == 1) return options;
  comm::expect_same(
      processes, "engine", "sizes",
      fmt::format("max-model-len {}, max-num-seqs {}, max-num-batched-tokens {}, max-logprobs {}",
                  options.max_model_len, options.max_num_seqs.value_or(0),
                  options.max_num_batched_tokens.value_or(0), options.max_logprobs));
  const double mine = options.kv_cache_memory.value_or(default_cache_memory());
  double least = mine;
  for (const std::string& other : processes.all_gather(fmt::format("{:.0f}", mine))) {
    least = std::min(least, std::stod(other));
  }
  options.kv_cache_memory = least;
  return options;
}

/// Chooses texts and new tokens of a step.
void choose_step(const engine::Run& run, const EngineOptions& options, StepLimits* limits) {
  constexpr int64_t kTexts = 32, kTokens = 512;
  const std::optional<int64_t>&texts = options.max_num_seqs,
        &tokens = options.max_num_batched_tokens;
  if (texts && tokens && *tokens < *texts) {
    fail(run.name,
         "--max-num-batched-tokens is {}, and --max-num-seqs {}; expected at least as many tokens, "
         "as a step has one of every text; try --max-num-seqs {}",
         *tokens, *texts, *tokens);
  }
  limits->sequences = texts.value_or(std::min(kTexts, tokens.value_or(kTexts)));
  limits->tokens = tokens.value_or(std::max(kTokens, limits->sequences));
  if (!texts && limits->sequences < kTexts) {
    log_warning(
        "at most {} texts are in a batch, as a step has {} tokens "
        "(--max-num-batched-tokens)",
        limits->sequences, limits->tokens);
  }
}

}  // namespace

StepLimits choose_limits(const engine::Run& run, const data::Tokenizer& tokenizer,
                         const EngineOptions& options) {
  StepLimits limits;
  limits.parts = engine::generation_parts(run);
  const int64_t of_page = page_bytes(run);
  const double bytes = options.kv_cache_memory.value_or(default_cache_memory());
  const int64_t affordable = static_cast<int64_t>(bytes) / of_page;
  const int64_t possible = affordable * PagePool::kTokens;
  limits.longest = options.max_model_len;
  if (limits.longest == 0) {
    limits.longest = std::min(std::max<int64_t>(run.model.max_position, 1), possible);
  }
  if (limits.longest > possible || limits.longest < 1) {
    fail(
        run.name,
        "a text of {} tokens needs {} of KV cache; there are {}; try a smaller --max-model-len, or "
        "more --kv-cache-memory",
        std::max<int64_t>(limits.longest, 1),
        human_bytes(static_cast<double>(
            of_page * ceil_div(std::max<int64_t>(limits.longest, 1), PagePool::kTokens))),
        human_bytes(bytes));
  }
  choose_step(run, options, &limits);
  limits.pages =
      std::min(affordable, limits.sequences * (ceil_div(limits.longest, PagePool::kTokens) + 1));
  limits.vocab = std::min<int64_t>(tokenizer.vocab_size(), run.model.vocab_size);
  limits.rows = std::max<int64_t>(limits.parts * limits.sequences, 64);
  limits.changes = limits.parts * limits.sequences * 256 + limits.longest + 1024;
  limits.alternatives = std::min(std::max<int64_t>(options.max_logprobs, 1), limits.vocab);
  return limits;
}

std::string cache_namespace(const engine::Run& run) {
  return fmt::format("weights {} of {}, adapter {}", run.weights, run.config.model.path,
                     run.adapter);
}

engine::Compiled compile_generation(const engine::Run& run, const StepLimits& limits) {
  engine::Compiled compiled = engine::compile(generation_spec(run, limits));
  engine::expect_proven(run, compiled, "generates");
  return compiled;
}

struct ModelEngine::Impl {
  Impl(const engine::Run& run, const data::Tokenizer& tokenizer, const EngineOptions& options)
      : ranks(engine::local_ranks(run)), programs(run, ranks) {
    const StepLimits limits = choose_limits(run, tokenizer, agreed(options, ranks.processes()));
    const engine::ProgramSpec spec = generation_spec(run, limits);
    programs.replace(spec, compile_generation(run, limits));
    const engine::Compiled& compiled = programs.compiled(spec);
    const std::vector<program::Memory> planned = program::memory_of(compiled.program);
    engine::require_memory(run, compiled.program, planned);
    for (const int32_t rank : ranks.ids()) {
      const program::Memory& of_rank = planned[compiled.program.class_of(rank)];
      planned_bytes += of_rank.with_host();
      if (of_rank.total() > fullest.total()) {
        fullest = of_rank;
      }
    }
    engine::load_weights(engine::open_weights(run), compiled, programs.store());
    engine::Session& session = programs.session(spec);
    engine::initialise(session.graph(), session.program(), 0, session.store());
    stepper = std::make_unique<SessionStepper>(session, limits);
    if (ranks.processes().index() != 0) return;
    SchedulerOptions scheduler_options;
    scheduler_options.prefix_caching = options.prefix_caching;
    scheduler_options.decode_steps = options.decode_steps;
    scheduler_options.prompt_tokens = options.prompt_tokens;
    scheduler_options.max_waiting = options.max_waiting;
    scheduler_options.cache_namespace = cache_namespace(run);
    engine = std::make_unique<Engine>(*stepper, &tokenizer, std::move(scheduler_options),
                                      [this] { stepper->stay_alive(); });
  }

  runtime::LocalRanks ranks;
  engine::Programs programs;
  program::Memory fullest;    ///< planned, of the rank of this process that needs most
  int64_t planned_bytes = 0;  ///< of all ranks of this process
  std::unique_ptr<SessionStepper> stepper;
  std::unique_ptr<Engine> engine;  ///< of the process that leads
};

ModelEngine::ModelEngine(const engine::Run& run, const data::Tokenizer& tokenizer,
                         const EngineOptions& options)
    : impl_(std::make_unique<Impl>(run, tokenizer, options)) {}

ModelEngine::~ModelEngine() = default;

bool ModelEngine::leads() const { return impl_->engine != nullptr; }

void ModelEngine::follow() { impl_->stepper->follow(); }

const StepLimits& ModelEngine::limits() const { return impl_->stepper->limits(); }

std::string ModelEngine::sizes_text() const {
  const StepLimits& sizes = limits();
  return fmt::format(
      "texts of up to {} tokens, {} at a time, {} new tokens a step; KV cache of {} pages ({} "
      "tokens); memory of a rank: at most {} ({})",
      sizes.longest, sizes.sequences, sizes.tokens, sizes.pages, sizes.pages * PagePool::kTokens,
      human_bytes(static_cast<double>(impl_->fullest.total())),
      program::parts_text(impl_->fullest));
}

RequestId ModelEngine::submit(Request request, OnUpdate on_update) {
  return impl_->engine->submit(std::move(request), std::move(on_update));
}

void ModelEngine::cancel(RequestId id) { impl_->engine->cancel(id); }

Stats ModelEngine::stats() const {
  Stats stats = impl_->engine->stats();
  stats.planned_bytes = impl_->planned_bytes;
  for (const int32_t rank : impl_->ranks.ids()) {
    stats.resident_bytes += impl_->ranks.measured(rank).with_host();
  }
  return stats;
}

std::string ModelEngine::failure() const { return impl_->engine->failure(); }

bool ModelEngine::is_shut_down() const { return impl_->engine->is_shut_down(); }

int64_t ModelEngine::max_model_len() const { return limits().longest; }

int64_t ModelEngine::vocab_size() const { return limits().vocab; }

void ModelEngine::wait_idle() { impl_->engine->wait_idle(); }

void ModelEngine::stop() { impl_->engine->stop(); }

}  // namespace hocket::serve
