// SPDX-License-Identifier: Apache-2.0
// The program that generates: proven under every plan, and with the bits that the model gives a
// text without a cache, however it is cut into steps.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "check/check.h"
#include "engine/params.h"
#include "generation_util.h"
#include "graph/names.h"
#include "kernels/backend.h"
#include "program/memory.h"
#include "tests/serve/serve_util.h"

namespace hocket::serve {
namespace {

constexpr int64_t kWords = 64;

engine::Run run_of(const char* family, const std::vector<std::string>& plan = {}) {
  const std::string experts =
      "num_experts: 4, num_experts_per_tok: 2, moe_intermediate_size: 8, norm_topk_prob: true, "
      "mlp_only_layers: [], decoder_sparse_step: 1, ";
  return engine::parse_run(
      std::string("model: {dtype: f32, config: {model_type: ") + family +
          ", vocab_size: 64, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 4, "
          "head_dim: 4, intermediate_size: 24, " +
          (std::string(family).starts_with("gpt_neox") ? "" : "num_key_value_heads: 2, ") +
          (family == std::string("qwen3_moe") ? experts : "") +
          "max_position_embeddings: 4096}}\ntrain: {global_batch: 4}\n",
      "test", plan);
}

engine::Compiled compiled_for(const engine::Run& run, int64_t longest = 100) {
  return compile_generation(run, limits_of(run, longest, 64));
}

TEST(Generation, ProgramsAreProven) {
  for (const char* family : {"llama", "qwen3_moe"}) {
    const engine::Compiled compiled = compiled_for(run_of(family));
    const check::Verdict verdict = check::check(compiled.program, compiled.reference);
    EXPECT_TRUE(verdict.ok()) << to_text(verdict);
    EXPECT_FALSE(verdict.proved.empty());
    const std::string assumptions = fmt::format("{}", fmt::join(verdict.assumptions, "\n"));
    EXPECT_NE(assumptions.find("attention_paged takes from the host: page tables: no two sequences "
                               "write into one page"),
              std::string::npos)
        << assumptions;
    // The text form round-trips, and runs the same.
    const program::Program back = program::parse_program(program::print(compiled.program));
    EXPECT_TRUE(back == compiled.program);
    // A type with another symbol is another type.
    program::Program other = compiled.program;
    std::swap(other.symbols[0], other.symbols[1]);
    EXPECT_FALSE(check::check(other, compiled.reference).ok());
  }
}

TEST(Generation, NamesOfPrefixesTellWeightsAndAdaptersApart) {
  engine::Run plain = run_of("llama");
  plain.weights = "models/a";
  engine::Run adapted = plain, other = plain;
  adapted.adapter = "adapters/b";
  other.weights = "models/c";
  EXPECT_EQ(cache_namespace(plain), cache_namespace(engine::Run(plain)));
  EXPECT_NE(cache_namespace(plain), cache_namespace(adapted));
  EXPECT_NE(cache_namespace(plain), cache_namespace(other));
}

TEST(Generation, StepsHaveATokenOfEveryText) {
  const engine::Run run = run_of("llama");
  const data::Tokenizer tokenizer = byte_tokenizer();
  const auto limits = [&](std::optional<int64_t> texts, std::optional<int64_t> tokens) {
    EngineOptions options;
    options.max_model_len = 64;
    options.max_num_seqs = texts;
    options.max_num_batched_tokens = tokens;
    options.kv_cache_memory = 1e8;
    const StepLimits made = choose_limits(run, tokenizer, options);
    return std::pair(made.sequences, made.tokens);
  };
  EXPECT_EQ(limits({}, {}), std::pair(int64_t{32}, int64_t{512}));
  EXPECT_EQ(limits({}, 4), std::pair(int64_t{4}, int64_t{4}));
  EXPECT_EQ(limits(1000, {}), std::pair(int64_t{1000}, int64_t{1000}));
  EXPECT_EQ(limits(8, 8), std::pair(int64_t{8}, int64_t{8}));
  try {
    limits(32, 4);
    ADD_FAILURE() << "32 texts in steps of 4 tokens are not refused";
  } catch (const Error& error) {
    EXPECT_NE(
        std::string(error.what()).find("--max-num-batched-tokens is 4, and --max-num-seqs 32"),
        std::string::npos)
        << error.what();
  }
}

/// Every dim that is a symbol, of every kind and buffer, as the number that bounds it, as the other
/// symbol, and with another bound: all refused.
TEST(Generation, RefusesAProgramWithAnotherSymbol) {
  const engine::Compiled compiled = compiled_for(run_of("qwen3_moe"));
  check::Checker checker(compiled.reference, 1);
  ASSERT_TRUE(checker.check(compiled.program).ok());
  int refused = 0;
  const auto spoil = [&](const std::string& what, auto&& types_of) {
    const size_t count = types_of(compiled.program).size();
    for (size_t i = 0; i < count; ++i) {
      for (size_t d = 0; d < types_of(compiled.program)[i]->dims.size(); ++d) {
        const graph::Dim dim = types_of(compiled.program)[i]->dims[d];
        if (!dim.symbolic()) continue;
        const int32_t other = dim.symbol() == 0 ? 1 : 0;
        for (const graph::Dim& instead :
             {graph::Dim(int64_t{dim}),
              graph::Dim::of(other, compiled.program.symbols[static_cast<size_t>(other)]),
              graph::Dim::of(dim.symbol(), 2 * dim, 1, 1),
              graph::Dim::of(dim.symbol(), dim, 2, 1)}) {
          program::Program changed = compiled.program;
          const_cast<graph::TensorType*>(types_of(changed)[i])->dims[d] = instead;
          EXPECT_FALSE(checker.check(changed).ok())
              << what << " " << i << " dim " << d << " as " << to_string(instead);
          ++refused;
        }
      }
    }
  };
  spoil("kind type", [](const program::Program& program) {
    std::vector<const graph::TensorType*> types;
    for (const program::Kind& kind : program.kinds) {
      for (const auto* list : {&kind.in, &kind.out}) {
        for (const graph::TensorType& type : *list) {
          types.push_back(&type);
        }
      }
    }
    return types;
  });
  spoil("buffer", [](const program::Program& program) {
    std::vector<const graph::TensorType*> types;
    for (const program::Buffer& buffer : program.classes[0].buffers) {
      types.push_back(&buffer.type);
    }
    return types;
  });
  EXPECT_GT(refused, 300);
}

/// The logits of a text's last token are the same to the bit, however the text is cut into steps.
/// They are those of the model without a cache.
TEST(Generation, HasTheBitsOfTrainingHoweverATextIsCut) {
  for (const char* family :
       {"llama", "mistral, sliding_window: 5", "mistral, sliding_window: 90", "qwen3_moe",
        "gemma2, sliding_window: 8, query_pre_attn_scalar: 4", "qwen2", "qwen3", "olmo2",
        "phi3, pad_token_id: 0", "granite", "gpt_neox, hidden_act: gelu, rotary_pct: 1"}) {
    SCOPED_TRACE(family);
    const engine::Run run = run_of(family);
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < 300; ++i) {
      ids.push_back((i * i + 7 * i) % 61);
    }
    runtime::LocalRanks ranks(1, kernels::cpu_backend(), engine::rank_options(run));
    engine::Session session(compiled_for(run, 300), runtime::Store(ranks));
    engine::initialise(session.graph(), session.program(), 3, session.store());
    engine::Session whole(engine::compile(engine::logits(run, {1, 300, 1})), session.store());
    engine::Batch batch(1, 300);
    for (size_t i = 0; i < 300; ++i) {
      batch.tokens[i] = ids[i];
      batch.positions[i] = static_cast<int32_t>(i);
    }
    whole.feed(batch);
    whole.step();
    const std::vector<float> all = whole.collect_as<float>(graph::names::kLogits, 0);
    SessionStepper stepper(session, limits_of(run, 300, 64));
    for (const std::vector<int64_t>& pieces :
         std::vector<std::vector<int64_t>>{{64, 64, 64, 64, 44},
                                           {64, 35, 1},
                                           {1, 2, 64, 33, 64, 64, 1, 1, 1},
                                           {7, 64, 1, 1, 27}}) {
      int64_t done = 0;
      for (const int64_t piece : pieces) {
        const std::vector<float> last =
            logits_of_step<float>(session, stepper, ids, done, piece, 10);
        done += piece;
        ASSERT_EQ(last.size(), static_cast<size_t>(kWords));
        for (int64_t i = 0; i < kWords; ++i) {
          ASSERT_EQ(last[static_cast<size_t>(i)], all[static_cast<size_t>((done - 1) * kWords + i)])
              << "logit " << i << " after " << done << " tokens";
        }
      }
    }
  }
}

/// Parameters sharded over data-parallel ranks are not gathered for every token: all ranks have
/// them whole, and divide the sequences. They exchange the hidden states before the head.
TEST(Generation, ShardedParametersAreWhole) {
  for (const char* group : {"plan.shard.group=2", "plan.shard.group=0"}) {
    const char* among = group[17] == '2' ? "plan.shard.params=group" : "plan.shard.params=all";
    const engine::Run run = run_of("llama", {"plan.dp=4", group, among});
    const program::Program program = compiled_for(run).program;
    for (const program::RankClass& cls : program.classes) {
      const auto communicates = [&](const program::Task& task) {
        return program::is_communication(program.kind(task));
      };
      EXPECT_LE(std::count_if(cls.tasks.begin(), cls.tasks.end(), communicates), 2);
      for (const program::Buffer& buffer : cls.buffers) {
        if (buffer.name.ends_with("k_pages")) {
          EXPECT_EQ(buffer.type.dims[0], limits_of(run, 100, 64).pages);
        }
      }
    }
  }
}

/// Under every plan the program is proven, and its logits are those of one rank.
TEST(Generation, EveryPlanGivesTheLogitsOfOneRank) {
  const std::vector<std::vector<std::string>> dense = {
      {"plan.tp=2"},
      {"plan.tp=4"},
      {"plan.pp=2"},
      {"plan.pp=2", "plan.pp_schedule=dualpipe", "train.global_batch=4"},
      {"plan.dp=2"},
      {"plan.cp=2"},
      {"plan.cp=2", "plan.cp_comm_type=p2p"},
      {"plan.cp=2", "plan.cp_comm_type=a2a"},
      {"plan.dp=2", "plan.shard.params=all"},
      {"plan.tp=2", "plan.sequence_parallel=true"},
      {"plan.pp=2", "plan.tp=2", "plan.dp=2", "plan.all_reduce=ring"}};
  std::vector<std::vector<std::string>> moe = dense;
  for (const std::vector<std::string>& more :
       std::vector<std::vector<std::string>>{{"plan.dp=2", "plan.ep=2"},
                                             {"plan.dp=4", "plan.ep=4", "plan.ep_inner=2"},
                                             {"plan.tp=2", "plan.etp=2"},
                                             {"plan.pp=2", "plan.dp=2", "plan.ep=2"}}) {
    moe.push_back(more);
  }
  const std::vector<int32_t> ids = {5, 11, 60, 3, 7, 7, 23, 41, 2, 19};
  for (const char* family : {"llama", "qwen3_moe"}) {
    const auto logits_of = [&](const std::vector<std::string>& plan) {
      const engine::Run run = run_of(family, plan);
      runtime::LocalRanks ranks = engine::local_ranks(run);
      engine::Session session(compiled_for(run), runtime::Store(ranks));
      engine::initialise(session.graph(), session.program(), 3, session.store());
      std::vector<float> all;
      SessionStepper stepper(session, limits_of(run, 100, 64));
      for (const auto& [begin, count] : {std::pair{0, 7}, {7, 1}, {8, 2}}) {
        const std::vector<float> last = logits_of_step<float>(session, stepper, ids, begin, count);
        all.insert(all.end(), last.begin(), last.end());
      }
      return all;
    };
    const std::vector<float> one = logits_of({});
    for (const std::vector<std::string>& plan : family[0] == 'q' ? moe : dense) {
      SCOPED_TRACE(std::string(family) + " " + fmt::format("{}", fmt::join(plan, " ")));
      const std::vector<float> many = logits_of(plan);
      ASSERT_EQ(many.size(), one.size());
      for (size_t i = 0; i < one.size(); ++i) {
        EXPECT_NEAR(many[i], one[i], 1e-5);
      }
    }
  }
}

/// The memory of every rank stays within its plan, category by category, while texts fill one page
/// of the KV cache after the other; pages that no text has used are not allocated.
TEST(Generation, MemoryIsWithinThePlanPageByPage) {
  constexpr int64_t kLongest = 4096;
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < kLongest; ++i) {
    ids.push_back((i * i + 7 * i) % 61);
  }
  for (const std::vector<std::string>& plan : std::vector<std::vector<std::string>>{
           {}, {"plan.tp=2"}, {"plan.pp=2"}, {"plan.dp=2"}, {"plan.dp=2", "plan.ep=2"}}) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(plan, " ")));
    const engine::Run run = run_of(plan.size() == 2 ? "qwen3_moe" : "llama", plan);
    const StepLimits limits = limits_of(run, kLongest, 512);
    runtime::LocalRanks ranks = engine::local_ranks(run);
    engine::Session session(compile_generation(run, limits), runtime::Store(ranks));
    engine::initialise(session.graph(), session.program(), 3, session.store());
    const std::vector<program::Memory> planned = program::memory_of(session.program());
    SessionStepper stepper(session, limits);
    int64_t before = ranks.measured(ranks.ids().back()).persistent;
    const int64_t weights = before;
    for (int64_t text = 0; text < 2; ++text) {
      for (int64_t begin = 0; begin < kLongest; begin += 512) {
        const auto first = static_cast<int32_t>(text * limits.pages / 2);
        stepper.step(step_of(ids, begin, 512, first, limits.parts));
        for (const int32_t rank : ranks.ids()) {
          SCOPED_TRACE(fmt::format("rank {}, text {}, token {}", rank, text, begin));
          const program::Memory taken = ranks.measured(rank);
          const program::Memory& plan_of_rank = planned[session.program().class_of(rank)];
          EXPECT_LE(taken.persistent, plan_of_rank.persistent);
          EXPECT_LE(taken.inputs_outputs, plan_of_rank.inputs_outputs);
          EXPECT_LE(taken.step_buffers, plan_of_rank.step_buffers);
          EXPECT_LE(taken.messages, plan_of_rank.messages);
          EXPECT_LE(taken.host, plan_of_rank.host);
        }
        // The last rank has the last partition's texts.
        const int64_t now = ranks.measured(ranks.ids().back()).persistent;
        EXPECT_GE(now, before) << "text " << text << ", token " << begin;
        before = now;
      }
      // The plan gives every weight pages of its own; side by side they take fewer.
      const int64_t last = ranks.ids().back();
      const int64_t cache = planned[session.program().class_of(last)].persistent - weights;
      EXPECT_NEAR(static_cast<double>(before - weights),
                  static_cast<double>(cache * (text + 1)) / 2, 32.0 * program::kPageBytes);
      EXPECT_GT(cache, 4 * 32 * program::kPageBytes);
    }
  }
}

/// A second text of the same prompt computes its last token alone: it shares the first page and
/// copies the begin of the next one from the text that computes the prompt in the same step.
TEST(Generation, ACopiedPromptGivesTheSameLogits) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 43; ++i) {
    ids.push_back((i * i + 7 * i) % 61);
  }
  const auto count = static_cast<int32_t>(ids.size());
  for (const char* family : {"llama", "qwen3_moe"}) {
    for (const std::vector<std::string>& plan : std::vector<std::vector<std::string>>{
             {}, {"plan.tp=2"}, {"plan.pp=2"}, {"plan.dp=2"}, {"plan.cp=2"}}) {
      SCOPED_TRACE(fmt::format("{} {}", family, fmt::join(plan, " ")));
      const engine::Run run = run_of(family, plan);
      runtime::LocalRanks ranks = engine::local_ranks(run);
      engine::Session session(compiled_for(run, 64), runtime::Store(ranks));
      engine::initialise(session.graph(), session.program(), 3, session.store());
      SessionStepper stepper(session, limits_of(run, 64, 64));
      StepInput input = step_of(ids, 0, count, 0, stepper.limits().parts);
      stepper.step(input);
      const std::vector<float> alone = session.collect_as<float>(graph::names::kLogits, 0);
      ++input.part_tokens.back();
      input.tokens.push_back(ids.back());
      input.positions.push_back(count - 1);
      input.sequences.push_back(1);
      input.pages.push_back({0, 2});
      input.copies = {-1, 0, 1, count - 1};
      input.rows.push_back(count);
      input.settings.resize(2 * ops::kNumSettings, 0);
      input.draws.insert(input.draws.end(), {0, 0, count, -1});
      input.ranges.resize(4, 0);
      input.masks.resize(2);
      stepper.step(input);
      const std::vector<float> both = session.collect_as<float>(graph::names::kLogits, 0);
      ASSERT_EQ(alone.size(), static_cast<size_t>(kWords));
      ASSERT_EQ(both.size(), static_cast<size_t>(2 * kWords));
      for (size_t i = 0; i < both.size(); ++i) {
        ASSERT_EQ(both[i], alone[i % alone.size()]) << "text " << i / alone.size();
      }
    }
  }
}

}  // namespace
}  // namespace hocket::serve
