// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Axes cp and tp: the default splits of a model, pins, the communication between ranks, and refused
// plans. tests/plans compares the programs with one rank.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "check/check.h"
#include "program/memory.h"
#include "run/compile.h"

namespace hocket::parallel {
namespace {

struct Shape {
  int64_t kv_heads = 2, head_dim = 4, vocab = 24, seq_len = 8, heads = 2, experts = 0;
  int64_t hidden = 8;
  const char* recompute = "none";
  bool tied = false;
  const char* dense = "llama";  ///< the family without experts
};

engine::Run run_of(const std::string& plan, const Shape& shape = {}, double dropout = 0) {
  return engine::parse_run(
      fmt::format("model: {{config: {{model_type: {}, vocab_size: {}, hidden_size: {}, "
                  "num_hidden_layers: 2, num_attention_heads: {}, num_key_value_heads: {}, "
                  "head_dim: {}, intermediate_size: 12, tie_word_embeddings: {}{}}}}}\n"
                  "train: {{global_batch: 4, seq_len: {}, dropout: {}}}\n"
                  "plan: {{{}, recompute: {}, threads_per_rank: 1}}\n",
                  shape.experts > 0 ? "qwen3_moe" : shape.dense, shape.vocab, shape.hidden,
                  shape.heads, shape.kv_heads, shape.head_dim, shape.tied,
                  shape.experts > 0 ? fmt::format(", num_experts: {}, num_experts_per_tok: 2, "
                                                  "moe_intermediate_size: 6, norm_topk_prob: true",
                                                  shape.experts)
                                    : "",
                  shape.seq_len, dropout, plan, shape.recompute),
      "axes", {});
}

program::Program proven(const std::string& plan, const Shape& shape = {}) {
  engine::Compiled made = engine::compile(run_of(plan, shape));
  const check::Verdict verdict = check::check(made.program, made.reference);
  EXPECT_TRUE(verdict.ok()) << plan << "\n" << to_text(verdict);
  return std::move(made.program);
}

/// Returns the number of tasks of an op in the first class.
int64_t count(const program::Program& program, const std::string& op) {
  const auto& tasks = program.classes[program::ClassId(0)].tasks;
  return std::count_if(tasks.begin(), tasks.end(),
                       [&](const program::Task& task) { return program.kind(task).op == op; });
}

/// Returns the layouts of the first class's persistent tensors, by name.
std::map<std::string, std::string> stored(const program::Program& program) {
  std::map<std::string, std::string> layouts;
  for (const program::Buffer& buffer : program.classes[program::ClassId(0)].buffers) {
    if (buffer.kind == program::BufferKind::persistent) {
      layouts[buffer.name] = to_string(buffer.layout, program.roles[0].mesh);
    }
  }
  return layouts;
}

std::string refusal(const std::string& plan, const Shape& shape = {}) {
  try {
    engine::compile(run_of(plan, shape));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Axes, AreInTheMeshOnlyWithSeveralRanks) {
  EXPECT_EQ(to_string(run_of("dp: 2").plan.mesh()), "pp:1 edp:2 ep:1");
  EXPECT_EQ(to_string(run_of("tp: 2").plan.mesh()), "pp:1 edp:1 ep:1 tp:2");
  const Plan plan = run_of("pp: 2, dp: 2, cp: 2, tp: 2").plan;
  EXPECT_EQ(to_string(plan.mesh()), "pp:2 edp:2 ep:1 cp:2 tp:2");
  EXPECT_EQ(plan.world(), 16);
  // A group with a part of edp cuts it into two axes. Other groups are whole axes.
  EXPECT_EQ(to_string(run_of("dp: 4, shard: {group: 2}").plan.mesh()),
            "pp:1 edp:2 edp_inner:2 ep:1");
  EXPECT_EQ(to_string(run_of("dp: 4, cp: 2, shard: {group: 4}").plan.mesh()),
            "pp:1 edp:2 edp_inner:2 ep:1 cp:2");
  EXPECT_EQ(to_string(run_of("dp: 4, cp: 2, shard: {group: 2}").plan.mesh()),
            "pp:1 edp:4 ep:1 cp:2");
  EXPECT_EQ(to_string(run_of("dp: 4, shard: {group: 4}").plan.mesh()), "pp:1 edp:4 ep:1");
}

TEST(Axes, KeysAreGatheredWhereASequenceIsSplit) {
  // Keys and values of two layers, once each, and their gradients.
  const program::Program cut = proven("cp: 2, micro_batch: 1, dp: 4");
  EXPECT_EQ(count(cut, "all_gather"), 4);
  EXPECT_EQ(count(cut, "reduce_scatter"), 4);
  // Blocks of whole sequences gather nothing; two blocks per sequence do.
  EXPECT_EQ(count(proven("cp: 2, micro_batch: 2, dp: 2"), "all_gather"), 0);
  EXPECT_EQ(count(proven("cp: 4, micro_batch: 2, dp: 2"), "all_gather"), 4);
}

/// Partial sums over queries are added up at once, although gradients of keys and values are larger
/// than the tensors computed from them.
TEST(Axes, PartialSumsOverQueriesAreSummedAtOnce) {
  for (const char* recompute : {"none", "selective", "full"}) {
    for (const char* plan :
         {"cp: 2, micro_batch: 1, dp: 4", "cp: 4, tp: 2, micro_batch: 1, dp: 1"}) {
      proven(plan, {.head_dim = 8, .recompute = recompute});
    }
  }
}

TEST(Axes, TensorParallelismSplitsWhatOpsAllow) {
  const program::Program program = proven("tp: 2, micro_batch: 4");
  const std::map<std::string, std::string> layouts = stored(program);
  EXPECT_EQ(layouts.at("model.embed_tokens.weight"), "tp:S0");
  EXPECT_EQ(layouts.at("lm_head.weight"), "tp:S0");
  EXPECT_EQ(layouts.at("exp_avg.lm_head.weight"), "tp:S0");
  EXPECT_EQ(layouts.at("model.layers.1.self_attn.k_proj.weight"), "tp:S0");
  EXPECT_EQ(layouts.at("model.layers.1.self_attn.o_proj.weight"), "tp:S1");
  EXPECT_EQ(layouts.at("model.layers.0.mlp.gate_up_proj.weight"), "tp:S1");
  EXPECT_EQ(layouts.at("model.layers.0.mlp.down_proj.weight"), "tp:S1");
  EXPECT_EQ(layouts.at("model.norm.weight"), "B");
  EXPECT_EQ(count(program, "linear_cross_entropy"), 0);
  EXPECT_EQ(count(program, "rowmax"), 1);
  EXPECT_EQ(count(program, "all_gather"), 0);
}

/// Attention and the MLP of a parallel block read the same tokens and are added up before their sum
/// over tp. Half of the communication per layer is left: once forward and twice backward (gathered
/// tensors are gathered again).
TEST(Axes, ParallelBlocksMoveHalfAsMuch) {
  const auto counts = [](const char* family, const char* plan) {
    const program::Program program = proven(plan, {.dense = family});
    std::map<std::string, int64_t> of;
    for (const char* op : {"all_gather", "reduce_scatter", "all_reduce"}) {
      of[op] = count(program, op);
    }
    return of;
  };
  constexpr const char* kSplit = "tp: 2, sequence_parallel: true, micro_batch: 4";
  std::map<std::string, int64_t> plain = counts("llama", kSplit);
  std::map<std::string, int64_t> parallel = counts("parallel_llama", kSplit);
  EXPECT_EQ(plain["reduce_scatter"] - parallel["reduce_scatter"], 2 * 2);
  EXPECT_EQ(plain["all_gather"] - parallel["all_gather"], 2 * 3);
  plain = counts("llama", "tp: 2, micro_batch: 4");
  parallel = counts("parallel_llama", "tp: 2, micro_batch: 4");
  EXPECT_EQ(plain["all_reduce"] - parallel["all_reduce"], 2 * 2);
}

/// Only the hops of a ring that some query's window reaches are made, and their FLOPs add up to
/// those of one rank.
TEST(Axes, ARingGoesNoFurtherThanTheWindow) {
  struct Seen {
    int64_t tasks = 0;
    double flops = 0;
  };
  const auto attention = [](const std::string& plan, const char* family) {
    const program::Program program =
        proven(plan + ", micro_batch: 1", {.seq_len = 24, .dense = family});
    Seen seen;
    for (const program::Task& task : program.classes[program::ClassId(0)].tasks) {
      if (program.kind(task).op != "attention") continue;
      ++seen.tasks;
      seen.flops += program.kind(task).flops;
    }
    return seen;
  };
  const int64_t each = 4 * 2;  // micro-batches and layers
  for (const auto& [family, hops] : {std::pair{"llama", 4},
                                     {"mistral, sliding_window: 8", 3},
                                     {"mistral, sliding_window: 7", 2},
                                     {"mistral, sliding_window: 1", 1}}) {
    const Seen ring = attention("cp: 4, cp_comm_type: p2p", family);
    EXPECT_EQ(ring.tasks, hops * each) << family;
    EXPECT_DOUBLE_EQ(4 * ring.flops, attention("cp: 1", family).flops) << family;
  }
}

/// Heads, widths and the vocabulary need not be multiples of tp: the first ranks have one more.
TEST(Axes, TpNeedNotDivideHeadsOrVocabulary) {
  const program::Program three = proven("tp: 2", {.kv_heads = 3, .vocab = 23, .heads = 3});
  const std::map<std::string, std::string> layouts = stored(three);
  EXPECT_EQ(layouts.at("model.layers.1.self_attn.q_proj.weight"), "tp:S0");
  EXPECT_EQ(layouts.at("model.layers.1.self_attn.k_proj.weight"), "B");
  EXPECT_EQ(layouts.at("lm_head.weight"), "tp:S0");
  ASSERT_EQ(three.classes.size(), 2U);
  const auto heads = [&](program::ClassId cls) {
    int64_t number = 0;
    for (const program::Buffer& buffer : three.classes[cls].buffers) {
      if (buffer.name == "model.layers.1.self_attn.q_proj.weight") {
        number = buffer.type.dims[0];
      }
    }
    return number;
  };
  EXPECT_EQ(heads(program::ClassId(0)), 2);
  EXPECT_EQ(heads(program::ClassId(1)), 1);
  // Query heads are shared among the ranks that have their key heads.
  const std::map<std::string, std::string> six =
      stored(proven("tp: 4", {.kv_heads = 2, .heads = 6}));
  EXPECT_EQ(six.at("model.layers.0.self_attn.q_proj.weight"), "tp_kv:S0 tp:S0[2,1,2,1]");
  EXPECT_EQ(six.at("model.layers.0.self_attn.k_proj.weight"), "tp_kv:S0");
  proven("tp: 4, dp: 2, shard: {params: all, grads: all}", {.kv_heads = 1, .heads = 6});
  proven("tp: 4, etp: 4, dp: 2, ep: 2", {.vocab = 23, .heads = 6, .experts = 4});
}

TEST(Axes, CpNeedNotDivideTokens) {
  const Shape moe{.experts = 8};
  for (const char* plan : {"cp: 3", "cp: 3, dp: 2, pp: 2", "cp: 3, tp: 2", "cp: 3, micro_batch: 2",
                           "cp: 5, micro_batch: 4", "dp: 2, cp: 3, dp_samples: [3, 1]",
                           "dp: 2, cp: 3, shard: {params: all, grads: all}"}) {
    proven(plan, {.kv_heads = 1, .heads = 3});
    proven(plan, {.kv_heads = 1, .heads = 3, .experts = 8});
  }
  proven("cp: 3, cp_comm_type: a2a", {.kv_heads = 3, .heads = 3});
  proven("dp: 2, ep: 2, cp: 3", moe);
  // Two ranks have 6 tokens over 4 others: 4, 4, 2 and 2.
  proven("dp: 2, ep: 2, cp: 4, cp_comm_type: p2p, micro_batch: 1", {.seq_len = 6, .experts = 8});
  EXPECT_EQ(proven("cp: 3, dp: 2").classes.size(), 2U);
}

TEST(Axes, SequenceParallelNeedNotDivideTokens) {
  const Shape heads{.kv_heads = 2, .seq_len = 7, .heads = 4};
  const Shape moe{.kv_heads = 2, .seq_len = 7, .heads = 4, .experts = 8};
  for (const char* plan :
       {"tp: 2, micro_batch: 1", "tp: 4, micro_batch: 1",
        "tp: 3, dp: 2, micro_batch: 2, shard: {params: all, grads: all}",
        "tp: 2, cp: 2, micro_batch: 1", "tp: 2, pp: 2, micro_batch: 1",
        "tp: 2, dp: 2, dp_samples: [3, 1]", "tp: 2, cp: 3, micro_batch: 1, cp_comm_type: p2p"}) {
    proven(std::string(plan) + ", sequence_parallel: true", heads);
    proven(std::string(plan) + ", sequence_parallel: true", moe);
  }
  proven("tp: 2, sequence_parallel: true, micro_batch: 1, cp: 2, cp_comm_type: a2a", heads);
  proven("tp: 2, etp: 2, dp: 2, ep: 2, sequence_parallel: true, micro_batch: 1", moe);
  const program::Program uneven = proven("tp: 2, sequence_parallel: true, micro_batch: 1", heads);
  EXPECT_EQ(uneven.classes.size(), 2U);
  EXPECT_GT(count(uneven, "reduce_scatter"), 0);
}

/// In a ring of ranks with different numbers of tokens, the length of a message is that of its
/// block: each rank is a class of its own.
TEST(Axes, RingsNeedNotDivideTokens) {
  const Shape one{.kv_heads = 1};
  for (const char* plan : {"cp: 3, cp_comm_type: p2p, micro_batch: 1",
                           "cp: 3, dp: 2, pp: 2, cp_comm_type: p2p, micro_batch: 1",
                           "cp: 5, micro_batch: 2, cp_comm_type: p2p",
                           "dp: 2, cp: 3, dp_samples: [3, 1], cp_comm_type: p2p"}) {
    proven(plan, one);
    proven(plan, {.kv_heads = 1, .experts = 8});
  }
  // In zigzag order the two parts of a rank may have different lengths.
  for (const char* plan : {"cp: 3, micro_batch: 1", "cp: 3, micro_batch: 2, dp: 2, pp: 2",
                           "cp: 2, micro_batch: 1, tp: 2", "cp: 4, micro_batch: 2"}) {
    const std::string zigzag = fmt::format("{}, cp_comm_type: p2p, cp_order: zigzag", plan);
    for (const int64_t tokens : {6, 7, 8, 11}) {
      proven(zigzag, {.kv_heads = 1, .seq_len = tokens});
      proven(zigzag, {.kv_heads = 1, .seq_len = tokens, .experts = 8});
    }
  }
  const program::Program ring = proven("cp: 3, cp_comm_type: p2p, micro_batch: 1", one);
  EXPECT_EQ(ring.classes.size(), 3U);
  EXPECT_EQ(proven("cp: 4, cp_comm_type: p2p, micro_batch: 1").classes.size(), 1U);
}

/// With few tokens, gradients of weights are made of gathered operands, so that tensors of a ring
/// have other readers, too.
TEST(Axes, RingsAreProvenWithFewTokens) {
  for (const char* order : {"contiguous", "zigzag"}) {
    const std::string plan =
        fmt::format("cp: 2, cp_comm_type: p2p, cp_order: {}, micro_batch: 1", order);
    proven(plan, {.kv_heads = 4, .head_dim = 64, .seq_len = 32, .heads = 4, .hidden = 256});
    proven(plan, {.kv_heads = 2, .head_dim = 64, .seq_len = 16, .heads = 8, .hidden = 512});
  }
}

/// Where products read the residuals themselves, a gradient that tp gathers is read only by the
/// products that add theirs to it.
TEST(Axes, RingsKeepGatheredGradientsForLaterAdditions) {
  for (const char* order : {"contiguous", "zigzag"}) {
    const std::string plan = fmt::format(
        "cp: 2, tp: 2, sequence_parallel: true, cp_comm_type: p2p, cp_order: {}, micro_batch: 1",
        order);
    proven(plan, {.kv_heads = 1, .seq_len = 32, .dense = "olmo2"});
  }
}

/// Data-parallel ranks may have different numbers of sequences: given ones, or a remainder.
TEST(Axes, DpNeedNotDivideSequences) {
  const program::Program told = proven("dp: 2, dp_samples: [3, 1]");
  ASSERT_EQ(told.classes.size(), 2U);
  std::map<std::string, std::string> inputs;
  for (const program::Buffer& buffer : told.classes[program::ClassId(1)].buffers) {
    if (buffer.kind == program::BufferKind::input) {
      inputs[buffer.name] = to_string(buffer.layout, told.roles[0].mesh);
    }
  }
  EXPECT_EQ(inputs.at("tokens"), "edp:S0[24,8]");
  EXPECT_EQ(run_of("dp: 3, micro_batch: 2").plan.dp_samples, (std::vector<int64_t>{2, 1, 1}));
  const Shape moe{.experts = 8};
  for (const char* plan :
       {"dp: 3, micro_batch: 2", "dp: 3, dp_samples: [2, 1, 1], shard: {params: all, grads: all}",
        "dp: 2, dp_samples: [3, 1], tp: 2, sequence_parallel: true",
        "dp: 2, dp_samples: [3, 1], cp: 2", "dp: 2, dp_samples: [3, 1], cp: 2, cp_comm_type: p2p",
        "dp: 2, dp_samples: [3, 1], cp: 2, cp_comm_type: a2a",
        "dp: 2, dp_samples: [1, 3], pp: 2, tp: 2"}) {
    proven(plan);
    proven(plan, moe);
  }
  proven("dp: 4, dp_samples: [1, 1, 1, 1], ep: 2", moe);
  // In chunks of sizes that differ between classes.
  proven("dp: 2, dp_samples: [3, 1], moe_chunks: 2", moe);
  proven("dp: 2, dp_samples: [1, 3], moe_chunks: 4, tp: 2, sequence_parallel: true", moe);
  proven("dp: 2, dp_samples: [3, 1], cp: 2, ep: 2", moe);
}

/// Ranks of an expert all-to-all may have different numbers of tokens: the exchanged sizes say how
/// many.
TEST(Axes, EpNeedNotDivideTokens) {
  const Shape moe{.kv_heads = 2, .seq_len = 7, .heads = 4, .experts = 8};
  for (const char* plan :
       {"dp: 2, ep: 2, dp_samples: [3, 1]", "dp: 2, ep: 2, dp_samples: [1, 3], pp: 2",
        "dp: 3, ep: 3, dp_samples: [1, 2, 1]", "cp: 2, ep: 2, micro_batch: 1",
        "cp: 3, dp: 2, ep: 2, micro_batch: 1, cp_comm_type: p2p",
        "tp: 2, sequence_parallel: true, ep: 2, micro_batch: 1",
        "dp: 2, cp: 2, tp: 2, sequence_parallel: true, ep: 8, micro_batch: 1",
        "dp: 2, cp: 2, tp: 2, sequence_parallel: true, ep: 4, dp_samples: [1, 3]",
        "dp: 3, micro_batch: 2, ep: 3",
        "tp: 4, etp: 2, sequence_parallel: true, ep: 2, micro_batch: 1"}) {
    proven(plan, moe);
  }
  // Chunks of a rank follow its number of tokens.
  proven("dp: 2, ep: 2, dp_samples: [3, 1], moe_chunks: 2", {.seq_len = 8, .experts = 8});
  proven("dp: 2, ep: 2, dp_samples: [1, 3], moe_chunks: 4, moe_chunks_backward: 2",
         {.seq_len = 8, .experts = 8});
  EXPECT_NE(refusal("dp: 2, ep: 2, dp_samples: [3, 1], moe_chunks: 2", moe).find("on a rank"),
            std::string::npos);
}

/// Tokens of a data-parallel rank in given shares.
TEST(Axes, SharesOfSequencesAreGiven) {
  EXPECT_EQ(parallel::shares_of(10, {3, 1}), (std::vector<int64_t>{7, 3}));
  EXPECT_EQ(parallel::shares_of(7, {1, 1, 1}), (std::vector<int64_t>{2, 2, 3}));
  EXPECT_EQ(parallel::shares_of(int64_t{1} << 50, {1, 1, 2}),
            (std::vector<int64_t>{int64_t{1} << 48, int64_t{1} << 48, int64_t{1} << 49}));
  const program::Program told = proven("cp: 2, cp_shares: [3, 1], micro_batch: 1");
  ASSERT_EQ(told.classes.size(), 2U);
  for (const program::Buffer& buffer : told.classes[program::ClassId(1)].buffers) {
    if (buffer.kind == program::BufferKind::input && buffer.name == "tokens") {
      EXPECT_EQ(to_string(buffer.layout, told.roles[0].mesh), "cp:S0[6,2]");
    }
  }
  for (const char* plan :
       {"cp: 3, cp_shares: [4, 1, 3]", "cp: 2, cp_shares: [1, 3], tp: 2, dp: 2",
        "cp: 2, cp_shares: [1, 3], tp: 2, sequence_parallel: true", "cp: 2, cp_shares: [1, 1]",
        "cp: 2, cp_shares: [3, 1], pp: 2, shard: {params: all, grads: all}",
        "cp: 2, cp_shares: [3, 1], cp_comm_type: a2a",
        "cp: 3, cp_shares: [4, 1, 3], cp_comm_type: p2p",
        "dp: 2, dp_samples: [1, 3], cp: 3, cp_shares: [2, 1, 4], cp_comm_type: p2p"}) {
    const std::string micro =
        std::string(plan).find("dp_samples") == std::string::npos ? ", micro_batch: 1" : "";
    proven(plan + micro);
    proven(plan + micro, {.experts = 8});
  }
  proven("cp: 2, cp_shares: [3, 1], ep: 2, micro_batch: 1", {.experts = 8});
  proven("cp: 2, cp_shares: [5, 2], cp_comm_type: p2p, micro_batch: 1",
         {.kv_heads = 4, .head_dim = 64, .seq_len = 32, .heads = 4, .hidden = 256});
}

/// Ranks in excess of the key and value heads share these, and have query heads of their own.
TEST(Axes, QueriesAreSplitOverMoreRanksThanKeys) {
  const std::map<std::string, std::string> one = stored(proven("tp: 2", {.kv_heads = 1}));
  EXPECT_EQ(one.at("model.layers.1.self_attn.q_proj.weight"), "tp:S0");
  EXPECT_EQ(one.at("model.layers.1.self_attn.k_proj.weight"), "B");
  EXPECT_EQ(one.at("model.layers.1.self_attn.o_proj.weight"), "tp:S1");
  const Shape four{.kv_heads = 2, .heads = 4};
  EXPECT_EQ(to_string(run_of("tp: 4", four).plan.mesh()), "pp:1 edp:1 ep:1 tp_kv:2 tp:2");
  EXPECT_EQ(to_string(run_of("tp: 4, cp: 2", four).plan.mesh()),
            "pp:1 edp:1 ep:1 cp:2 tp_kv:2 tp:2");
  for (const char* plan : {"tp: 4", "tp: 4, sequence_parallel: true"}) {
    const std::map<std::string, std::string> groups = stored(proven(plan, four));
    EXPECT_EQ(groups.at("model.layers.0.self_attn.q_proj.weight"), "tp_kv:S0 tp:S0");
    EXPECT_EQ(groups.at("model.layers.0.self_attn.k_proj.weight"), "tp_kv:S0");
    EXPECT_EQ(groups.at("lm_head.weight"), "tp_kv:S0 tp:S0");
  }
  // Fewer heads than ranks: a number of ranks that divides them have parts.
  const std::map<std::string, std::string> two = stored(proven("tp: 4", {.kv_heads = 2}));
  EXPECT_EQ(two.at("model.layers.0.self_attn.q_proj.weight"), "tp_kv:S0");
}

TEST(Axes, SequenceParallelKeepsAPartOfTheTokens) {
  const program::Program whole = proven("tp: 2, micro_batch: 4", {.seq_len = 256});
  const program::Program split =
      proven("tp: 2, sequence_parallel: true, micro_batch: 4", {.seq_len = 256});
  // Forward, two products per layer and the head gather; two products and the embedding scatter.
  // Backward, the gathers repeat for the gradients of weights. Nodes that scattered gather their
  // gradients, as does the embedding; nodes that gathered, and the head, scatter.
  EXPECT_EQ(count(split, "all_gather"), 2 * (2 + 2 + 2) + 1 + 1);
  EXPECT_EQ(count(split, "reduce_scatter"), 2 * (2 + 2) + 1 + 1);
  EXPECT_EQ(count(whole, "reduce_scatter") + count(whole, "all_gather"), 0);
  const int64_t before = program::memory_of(whole)[0].step_buffers;
  const int64_t after = program::memory_of(split)[0].step_buffers;
  EXPECT_LT(after, before * 19 / 20) << before;
  for (const char* recompute : {"selective", "full"}) {
    proven("tp: 2, sequence_parallel: true, cp: 2, micro_batch: 2", {.recompute = recompute});
  }
}

TEST(Axes, HeadsAreExchangedForTokens) {
  const program::Program cut = proven("cp: 2, micro_batch: 1, dp: 4, cp_comm_type: a2a");
  // q, k, v and o of each of two layers, and their gradients; positions are gathered, once.
  EXPECT_EQ(count(cut, "resplit"), 2 * 8);
  EXPECT_EQ(count(cut, "all_gather"), 1);
  EXPECT_EQ(count(cut, "reduce_scatter"), 0);
  // Whole sequences need nothing.
  EXPECT_EQ(count(proven("cp: 2, micro_batch: 2, dp: 2, cp_comm_type: a2a"), "resplit"), 0);
  const Shape four{.kv_heads = 2, .heads = 4};
  proven("cp: 2, tp: 2, micro_batch: 1, cp_comm_type: a2a", four);
  proven("cp: 2, tp: 2, sequence_parallel: true, micro_batch: 1, cp_comm_type: a2a", four);
  proven("cp: 4, micro_batch: 1, cp_comm_type: a2a", four);
}

/// No dim of the product after attention is divided by dp and cp together. Its heads are parts over
/// cp where the gradient is made, and are split over dp where the gradient accumulates.
TEST(Axes, ExchangedHeadsAreScatteredOverOtherAxes) {
  for (const char* shard : {"grads: all", "params: all, grads: all"}) {
    proven(fmt::format("dp: 4, cp: 4, micro_batch: 1, cp_comm_type: a2a, shard: {{{}}}", shard),
           {.seq_len = 16, .heads = 8, .hidden = 24});
  }
}

TEST(Axes, ExpertsAreSplitOverAllAxes) {
  const Shape moe{.experts = 8};
  const auto mesh = [&](const std::string& plan) {
    return to_string(run_of(plan, moe).plan.mesh());
  };
  EXPECT_EQ(mesh("dp: 2, cp: 2, ep: 2"), "pp:1 edp:2 ep:1 cp_ep:2");
  EXPECT_EQ(mesh("dp: 2, cp: 4, ep: 2"), "pp:1 edp:2 ep:1 cp:2 cp_ep:2");
  EXPECT_EQ(mesh("dp: 2, cp: 4, ep: 2, cp_comm_type: p2p"), "pp:1 edp:1 ep:2 cp:4");
  EXPECT_EQ(mesh("dp: 2, tp: 2, ep: 2"), "pp:1 edp:1 ep:2 tp:2");
  EXPECT_EQ(mesh("dp: 2, tp: 2, sequence_parallel: true, ep: 2"), "pp:1 edp:2 ep:1 tp_ep:2");
  EXPECT_EQ(mesh("dp: 2, cp: 2, tp: 2, sequence_parallel: true, ep: 8, micro_batch: 1"),
            "pp:1 edp:1 ep:2 cp_ep:2 tp_ep:2");
  EXPECT_EQ(mesh("dp: 2, tp: 2, etp: 2, ep: 2"), "pp:1 edp:1 ep:2 tp_etp:2");
  for (const char* plan :
       {"dp: 2, cp: 2, ep: 4", "dp: 2, tp: 2, etp: 2, ep: 2", "tp: 2, etp: 2",
        "dp: 2, tp: 2, sequence_parallel: true, ep: 4", "tp: 2, sequence_parallel: true, etp: 2",
        "dp: 2, cp: 2, tp: 2, sequence_parallel: true, ep: 8, micro_batch: 1",
        "dp: 2, tp: 2, sequence_parallel: true, etp: 2, ep: 2"}) {
    const std::map<std::string, std::string> layouts = stored(proven(plan, moe));
    const std::string& gate = layouts.at("model.layers.0.mlp.experts.gate_up_proj");
    EXPECT_EQ(gate.find("tp_etp:S2") != gate.npos, std::string(plan).find("etp") != gate.npos)
        << plan << ": " << gate;
  }
}

TEST(Axes, PinsOverrideDefaults) {
  const std::map<std::string, std::string> layouts = stored(
      proven("tp: 2, layouts: ['*_proj.weight B', '*.down_proj.weight tp:S1', lm_head.weight B]"));
  EXPECT_EQ(layouts.at("model.embed_tokens.weight"), "tp:S0");
  EXPECT_EQ(layouts.at("lm_head.weight"), "B");
  EXPECT_EQ(layouts.at("exp_avg_sq.lm_head.weight"), "B");
  EXPECT_EQ(layouts.at("model.layers.1.self_attn.q_proj.weight"), "B");
  EXPECT_EQ(layouts.at("model.layers.1.mlp.gate_up_proj.weight"), "B");
  EXPECT_EQ(layouts.at("model.layers.1.mlp.down_proj.weight"), "tp:S1");
  // An axis of one rank splits nothing.
  EXPECT_EQ(stored(proven("dp: 2, layouts: [lm_head.weight tp:S0]")).at("lm_head.weight"), "B");
  // plan.shard splits tensors without a pin, and along axes that no pin names.
  const std::map<std::string, std::string> shards = stored(
      proven("dp: 2, tp: 2, shard: {params: all, grads: all}, layouts: [lm_head.weight edp:B, "
             "model.embed_tokens.weight B, '*.down_proj.weight tp:S1']"));
  EXPECT_EQ(shards.at("lm_head.weight"), "tp:S0");
  EXPECT_EQ(shards.at("exp_avg.lm_head.weight"), "tp:S0");
  EXPECT_EQ(shards.at("model.embed_tokens.weight"), "B");
  EXPECT_EQ(shards.at("exp_avg.model.embed_tokens.weight"), "B");
  EXPECT_EQ(shards.at("model.layers.1.mlp.down_proj.weight"), "edp:S0 tp:S1");
}

TEST(Axes, ImpossiblePlansAreRefused) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"cp: 9, micro_batch: 1", "plan.cp is 9; expected at most the 8 tokens"},
      {"cp: 3, tp: 3, sequence_parallel: true, micro_batch: 1",
       "plan.cp is 3 and plan.tp 3, with plan.sequence_parallel: 9 ranks; expected at most the 8"},
      {"cp: 5, cp_comm_type: p2p, cp_order: zigzag",
       "plan.cp_order is zigzag, plan.cp is 5: two parts on each rank; expected at most half of "
       "the 8"},
      {"cp: 4, cp_comm_type: a2a", "expected a divisor of the 2 heads"},
      {"tp: 2, etp: 2", "plan.etp is 2 but the model has no experts"},
      {"tp: 25",
       "plan.tp is 25; expected at most 24, the size of dim 0 of model.embed_tokens.weight"},
      {"dp: 8", "expected a multiple of plan.dp x plan.micro_batch = 8"},
      {"dp: 2, dp_samples: [1, 1, 2]", "plan.dp_samples has 3 entries; expected plan.dp = 2"},
      {"dp: 2, dp_samples: [4, 0]", "plan.dp_samples has 0; expected 1 to"},
      {"dp: 2, dp_samples: [3, 2]", "expected a multiple of the 5 sequences of plan.dp_samples"},
      {"cp: 2, cp_shares: [1, 2, 1]", "plan.cp_shares has 3 entries; expected plan.cp = 2"},
      {"cp: 2, cp_shares: [3, 0]", "plan.cp_shares has 0; expected 1 or more"},
      {"cp: 2, cp_shares: [1, 20]", "plan.cp_shares [1, 20] are [0, 8] of the 8 tokens"},
      {"cp: 2, tp: 2, sequence_parallel: true, cp_shares: [7, 1]",
       "at least 2 tokens on each, for plan.tp 2"},
      {"dp: 2, cp: 2, cp_shares: [3, 1], dp_samples: [1, 3]", "plan.cp_comm_type all_gather"},
      {"cp: 2, cp_shares: [3, 1], cp_comm_type: p2p, cp_order: zigzag",
       "plan.cp_order is zigzag, and plan.cp_shares is [3, 1]"},
      {"tp: 2, layouts: [lm_head.weight]", "expected PATTERN LAYOUT"},
      {"tp: 2, layouts: [lm_head.weight tp:B B]", "expected B alone, or axis:S<dim> and axis:B"},
      {"tp: 2, layouts: [lm_head.weight tp:B tp:S0]", "axis tp is named twice"},
      {"tp: 2, layouts: [head.weight tp:S0]", "no tensor matches 'head.weight'"},
      {"tp: 2, layouts: [lm_head.weight tp:S2]", "'lm_head.weight tp:S2' is not possible"},
      {"tp: 9, layouts: ['*.weight B', model.norm.weight tp:S0]",
       "'model.norm.weight tp:S0' is not possible"},
      {"tp: 2, layouts: [lm_head.weight pp:S0]",
       "with one of edp, edp_inner, ep, ep_inner, cp, tp, or B"},
      {"tp: 2, layouts: [lm_head.weight tp:P]",
       "with one of edp, edp_inner, ep, ep_inner, cp, tp, or B"},
      {"tp: 2, layouts: [lm_head.weight te:S0]", "axis of the mesh"},
  };
  for (const auto& [plan, what] : cases) {
    EXPECT_NE(refusal(plan).find(what), std::string::npos) << plan << ": " << refusal(plan);
  }
  const Shape moe{.experts = 8};
  const std::vector<std::pair<std::string, std::string>> of_experts = {
      {"tp: 2, etp: 4", "plan.etp is 4; expected a divisor of plan.tp = 2"},
      {"tp: 8, etp: 8", "plan.etp is 8; expected at most 6"},
      {"tp: 2, ep: 2", "experts are split over tp only with plan.sequence_parallel: true"},
      {"dp: 2, cp: 2, ep: 8", "plan.ep is 8 / 2 = 4 (of cp 2 ranks, of tp 1); expected a divisor"},
  };
  for (const auto& [plan, what] : of_experts) {
    EXPECT_NE(refusal(plan, moe).find(what), std::string::npos)
        << plan << ": " << refusal(plan, moe);
  }
}

/// Readers find an activation in its pinned layout, and an impossible pin is named.
TEST(Axes, PinsSetLayoutsOfActivations) {
  const program::Program plain = proven("tp: 2, micro_batch: 4");
  EXPECT_EQ(count(plain, "reduce_scatter"), 0);
  const program::Program pinned =
      proven("tp: 2, micro_batch: 4, layouts: ['model.layers.*.attn.out tp:S0']");
  EXPECT_GE(count(pinned, "reduce_scatter"), 2);
  const std::string text =
      refusal("tp: 2, micro_batch: 4, layouts: ['model.layers.*.attn.o tp:S0']");
  EXPECT_NE(text.find("plan.layouts 'model.layers.*.attn.o tp:S0' pins some of them"), text.npos)
      << text;
  EXPECT_NE(refusal("tp: 2, layouts: ['model.layers.0.attn.out tp:S3']").find("is not possible"),
            std::string::npos);
}

/// A gradient and the optimizer states have the layout of their parameter's update: a pin of one
/// sets all.
TEST(Axes, PinsSetLayoutsOfUpdates) {
  const auto of = [](const std::string& pins, const std::string& more = "") {
    return stored(proven(fmt::format("dp: 2, tp: 2, micro_batch: 1, layouts: [{}]{}", pins, more)));
  };
  std::map<std::string, std::string> layouts = of("exp_avg.*norm.weight edp:S0");
  EXPECT_EQ(layouts.at("model.norm.weight"), "B");
  EXPECT_EQ(layouts.at("exp_avg.model.norm.weight"), "edp:S0");
  EXPECT_EQ(layouts.at("exp_avg_sq.model.norm.weight"), "edp:S0");
  EXPECT_EQ(layouts.at("exp_avg.lm_head.weight"), "tp:S0");
  layouts = of("grad.lm_head.weight edp:S1, 'grad.*.gate_up_proj.weight tp:B'");
  EXPECT_EQ(layouts.at("lm_head.weight"), "tp:S0");
  EXPECT_EQ(layouts.at("exp_avg.lm_head.weight"), "edp:S1 tp:S0");
  EXPECT_EQ(layouts.at("model.layers.0.mlp.gate_up_proj.weight"), "tp:S1");
  EXPECT_EQ(layouts.at("exp_avg.model.layers.0.mlp.gate_up_proj.weight"), "B");
  for (const char* shard : {"params: all", "grads: all", "params: all, grads: all",
                            "params: all, reshard_after_forward: false",
                            "params: all, reshard_after_forward: false, "
                            "reshard_after_backward: false"}) {
    layouts = of("'exp_avg*.model.norm.weight B'", fmt::format(", shard: {{{}}}", shard));
    EXPECT_EQ(layouts.at("exp_avg.model.norm.weight"), "B");
    EXPECT_EQ(layouts.at("exp_avg.lm_head.weight"), "edp:S1 tp:S0");
  }
}

TEST(Axes, RefusedPinsNameATensorToPin) {
  const std::string tied = "dp: 2, micro_batch: 1, layouts: ";
  for (const auto& [pins, what] : std::vector<std::pair<std::string, std::string>>{
           {"[adamw.lm_head.weight B]", "try grad.lm_head.weight"},
           {"['sumsq.* B']", "try grad.* or exp_avg.* of a parameter"},
           {"[grad_norm B]", "which cannot be pinned"},
           {"[exp_avg.lm_head.weight edp:S0, grad.lm_head.weight edp:S1]",
            "both set the layout of the update of lm_head.weight"},
           {"[tokens edp:S1]", "'tokens edp:S1' is not possible"},
           {"[d.nothing B]", "no tensor matches 'd.nothing'"}}) {
    EXPECT_NE(refusal(tied + pins).find(what), std::string::npos) << refusal(tied + pins);
  }
}

TEST(Axes, PinsSetLayoutsOfInputsAndBackwardActivations) {
  proven("dp: 2, micro_batch: 1, layouts: [tokens B]");
  proven("dp: 2, cp: 2, micro_batch: 1, layouts: [tokens B, 'positions cp:B', targets B]");
  proven("dp: 2, cp: 2, micro_batch: 1, layouts: ['* B']");
  const program::Program pinned =
      proven("tp: 2, micro_batch: 4, layouts: ['d.*.gate_up/linear_dx tp:S0']");
  EXPECT_GE(count(pinned, "reduce_scatter") + count(pinned, "all_gather"), 2);
  // Programs that only evaluate lack the pinned tensors, and ignore the pins.
  const engine::Run run =
      run_of("dp: 2, micro_batch: 1, layouts: ['d.* B', 'exp_avg.* edp:S0', 'grad.* edp:S0']");
  EXPECT_NO_THROW(engine::compile(engine::losses(run)));
}

/// A tied table is used on several ranks of the pipeline, and one of them has a complete addend.
TEST(Axes, PinnedTiedGradientsAreSummed) {
  const Shape tied{.tied = true};
  proven("pp: 2, dp: 2, micro_batch: 1, layouts: ['* B', tokens edp:S0]", tied);
  proven("pp: 2, cp: 2, micro_batch: 1, layouts: ['*attn.out B']", tied);
  proven("pp: 2, dp: 2, micro_batch: 1, layouts: ['d.*.0.input_layernorm/rms_norm_bwd B']", tied);
  const std::string text = refusal("dp: 2, layouts: ['grad.*#0 B']", tied);
  EXPECT_NE(text.find("try grad.model.embed_tokens.weight"), text.npos) << text;
}

/// Numbers of tokens reach the ranks that need them, whatever the shares.
TEST(Axes, PinsAllowUnevenTokens) {
  const Shape odd{.seq_len = 15};
  const engine::Run run = run_of("cp: 2, micro_batch: 1, layouts: ['*attn.out B']", odd, 0.1);
  engine::Compiled made = engine::compile(run);
  EXPECT_TRUE(check::check(made.program, made.reference).ok());
}

/// A pin of one axis of a dim that others also split, and one that sets their order.
TEST(Axes, PinsMaySetSomeAxesOfADimAndTheirOrder) {
  const auto of = [](const std::string& plan) { return stored(proven(plan, {.vocab = 22})); };
  EXPECT_EQ(of("dp: 2, tp: 2, micro_batch: 1, layouts: ['*embed_tokens.weight edp:S0']")
                .at("model.embed_tokens.weight"),
            "edp:S0 tp:S0[6,5,6,5]");
  EXPECT_EQ(of("dp: 2, tp: 2, micro_batch: 1, layouts: ['*embed_tokens.weight tp:S0 edp:S0']")
                .at("model.embed_tokens.weight"),
            "tp:S0 edp:S0[6,5,6,5]");
  proven(
      "cp: 2, tp: 2, micro_batch: 1, cp_comm_type: p2p, layouts: ['*gate_up_proj.weight cp:S1']");
}

TEST(Axes, ErrorsNameThePinThatCausesThem) {
  for (const auto& [plan, pin] : std::vector<std::pair<std::string, std::string>>{
           {"tp: 2", "*norm.weight tp:S0"},
           {"cp: 2, micro_batch: 1, cp_comm_type: p2p, cp_order: zigzag", "*attn.out B"}}) {
    const std::string text = refusal(fmt::format("{}, layouts: ['{}']", plan, pin));
    EXPECT_NE(text.find(fmt::format("plan.layouts '{}'", pin)), text.npos) << text;
  }
  const std::string text =
      refusal("tp: 2, etp: 2, layouts: ['*experts.down_proj B']", {.experts = 8});
  EXPECT_NE(text.find("plan.layouts '*experts.down_proj B'"), text.npos) << text;
}

/// For logits the head is a plain product; still all programs of a run store it in one layout.
TEST(Axes, LogitsStoreParametersInTheLayoutsOfTraining) {
  const engine::Run run = run_of("tp: 2, micro_batch: 2");
  const std::map<std::string, std::string> training = stored(engine::compile(run).program);
  for (const auto& [name, layout] : stored(engine::compile(engine::logits(run)).program)) {
    EXPECT_EQ(layout, training.at(name)) << name;
  }
}

}  // namespace
}  // namespace hocket::parallel
