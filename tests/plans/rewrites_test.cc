// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Keys of the plan that rewrite programs or place them on ranks. Under any plan around one, the
// program is proven, equals one rank, can be simulated, and its mutants are refused or equal.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <set>
#include <string>
#include <vector>

#include "check/check.h"
#include "check/mutants/mutate.h"
#include "cost/cost_model.h"
#include "engine/params.h"
#include "plan_util.h"
#include "sim/simulator.h"
#include "tests/programs/program_builder_util.h"

namespace hocket::test::rewrites_test {
namespace {

struct Row {
  std::string key, value;  ///< of the plan
  std::string plan;        ///< the rest of it
  bool moe = false;
  const char* mutation = "";  ///< that every second mutant is to be
};
/// Adds passes split into separate tasks that overlap; on ranks that split layers, too.
void add_schedules(std::vector<Row>* all) {
  all->push_back({"pp_schedule", "zb-h1", "pp: 2, dp: 2", false, "drop-edge"});
  all->push_back(
      {"pp_schedule", "dualpipe", "pp: 2, tp: 2, sequence_parallel: true", false, "group"});
  all->push_back(
      {"pp_schedule", "dualpipe", "pp: 2, cp: 2, cp_comm_type: a2a", false, "swap-tasks"});
  all->push_back({"pp_schedule", "dualpipe",
                  "pp: 2, dp: 4, ep: 2, shard: {grads: group, optimizer: all, group: 2}", true,
                  "message"});
  all->push_back({"etp", "2", "pp: 2, pp_schedule: dualpipe, tp: 2, dp: 2, ep: 2", true, "view"});
  all->push_back({"sequence_parallel", "true",
                  "pp: 2, pp_schedule: zb-v, pp_chunks: 2, pp_layers: [0, 1, 1, 0], tp: 2", false,
                  "move-task"});
  all->push_back({"cp_comm_type", "a2a",
                  "pp: 2, pp_schedule: dualpipev, pp_chunks: 2, pp_layers: [0, 1, 1, 0], cp: 2",
                  false, "both-ends"});
}

std::vector<Row> rows() {
  std::vector<Row> all;
  // Sums at once, by blocks, and where the rows of some do not divide; of several axes; in buckets.
  for (const char* plan :
       {"dp: 2", "dp: 3", "dp: 4", "dp: 4, bucket_mib: 0.002", "pp: 2, dp: 4, recompute: full"}) {
    all.push_back({"grad_codec", "identity", plan, false, "view"});
  }
  for (const char* plan : {"dp: 4, ep: 2", "dp: 8, ep: 4, bucket_mib: 0.002"}) {
    all.push_back({"grad_codec", "identity", plan, true, "message"});
  }
  // Codecs of some gradients, of a bucket or of parts of them, too; and of all but some.
  const std::string some = "['*self_attn* identity', 'lm_head* identity', '*.1.*v_proj* none']";
  for (const char* plan : {"dp: 4", "dp: 3, bucket_mib: 0.002", "pp: 2, dp: 2",
                           "dp: 3, bucket_mib: 0, comm_tiles: 3", "dp: 4, all_reduce: ring"}) {
    all.push_back({"grad_codec_of", some, plan, false, "view"});
  }
  // By the route that is said: at once, by blocks where rows divide.
  for (const char* route : {"['* identity at_once']", "['* identity by_blocks']"}) {
    all.push_back({"grad_codec_of", route, "dp: 4", false, "view"});
    all.push_back({"grad_codec_of", route, "dp: 2, bucket_mib: 0.002", false, "view"});
    all.push_back({"grad_codec_of", route, "dp: 4, ep: 2", true, "message"});
  }
  // By the host: copies to and from its memory, and its lane.
  const std::string by_host = "['* identity host', 'lm_head* identity at_once host']";
  for (const char* plan : {"dp: 2", "dp: 4", "dp: 3, bucket_mib: 0.002", "pp: 2, dp: 4",
                           "dp: 2, bucket_mib: 0, all_reduce: ring"}) {
    all.push_back({"grad_codec_of", by_host, plan, false, "view"});
  }
  all.push_back({"grad_codec_of", by_host, "dp: 4, ep: 2", true, "message"});
  all.push_back({"grad_codec_of", "['*experts* none']", "dp: 4, ep: 2, grad_codec: identity", true,
                 "message"});
  // Products that feed sums, rows by rows; before they are put into buckets and encoded, too.
  for (const char* plan : {"dp: 2", "dp: 4, bucket_mib: 0", "pp: 2, dp: 2, bucket_mib: 0.002",
                           "dp: 3, bucket_mib: 0, grad_codec: identity"}) {
    all.push_back({"comm_tiles", "3", plan, false, "view"});
  }
  all.push_back({"comm_tiles", "2", "dp: 4, ep: 2, bucket_mib: 0", true, "view"});
  // Rows in which tensor-parallel ranks have parts of the sum.
  all.push_back({"comm_tiles", "4", "dp: 2, tp: 2, micro_batch: 2", false, "view"});
  all.push_back({"comm_tiles", "3", "pp: 2, tp: 2, recompute: full", false, "view"});
  // Products beside collectives along their rows: of two ranks, and of more.
  all.push_back(
      {"comm_tiles", "3", "tp: 2, sequence_parallel: true, micro_batch: 2", false, "view"});
  all.push_back(
      {"comm_tiles", "8", "tp: 4, sequence_parallel: true, micro_batch: 4", false, "message"});
  all.push_back({"comm_tiles", "2", "pp: 2, dp: 2, tp: 2, sequence_parallel: true, recompute: full",
                 true, "message"});
  // Communication that does not run beside compute.
  all.push_back({"overlap_p2p_comm", "false", "pp: 2, dp: 2", false, "message"});
  all.push_back({"overlap_grad_reduce", "false", "pp: 2, dp: 2, bucket_mib: 0", false, "group"});
  all.push_back({"overlap_param_gather", "false", "dp: 2, shard: {params: all}", false, "group"});
  // Computation beside the last message, or collective, of a backward pass.
  all.push_back({"delay_wgrad_compute", "true", "pp: 2, dp: 2", false, "move-task"});
  all.push_back({"delay_wgrad_compute", "true", "dp: 4, tp: 2, shard: {params: all, grads: all}",
                 false, "drop-edge"});
  all.push_back({"delay_wgrad_compute", "true", "dp: 4, ep: 2, pp: 2", true, "swap-tasks"});
  // Keys gathered for the queries of a rank; around a ring; in zigzag order, too.
  all.push_back({"cp", "3", "pp: 2", false, "begin"});
  all.push_back({"cp", "2", "dp: 2, ep: 2", true, "begin"});
  for (const char* plan : {"cp: 3", "cp: 2, dp: 2, recompute: full", "cp: 6, micro_batch: 2",
                           "cp: 4, dp: 2, micro_batch: 3"}) {
    all.push_back({"cp_comm_type", "p2p", plan, false, "begin"});
  }
  all.push_back({"cp_comm_type", "p2p", "cp: 2, dp: 2, ep: 2", true, "message"});
  for (const char* plan : {"cp: 3, cp_comm_type: p2p", "pp: 2, cp: 3, cp_comm_type: p2p",
                           "cp: 6, micro_batch: 4, cp_comm_type: p2p"}) {
    all.push_back({"cp_order", "zigzag", plan, false, "view"});
  }
  all.push_back({"cp_order", "zigzag", "cp: 3, dp: 2, ep: 2, cp_comm_type: p2p", true, "begin"});
  // Rows of products in which ranks have parts, in other pieces backward.
  all.push_back({"moe_chunks_backward", "2", "tp: 2, etp: 2", true, "view"});
  // Heads exchanged for tokens, key heads too or gathered; inside those of tp.
  for (const char* plan : {"cp: 2", "pp: 2, cp: 4, micro_batch: 2", "cp: 2, tp: 2"}) {
    all.push_back({"cp_comm_type", "a2a", plan, false, "begin"});
  }
  // Tokens that ranks of tp split between products; with fewer key heads than ranks, too.
  for (const char* plan :
       {"tp: 2", "tp: 4, micro_batch: 2, recompute: full", "pp: 2, tp: 2, cp: 3",
        "tp: 4, micro_batch: 3, recompute: selective", "tp: 2, cp: 4, micro_batch: 3"}) {
    all.push_back({"sequence_parallel", "true", plan, false, "group"});
  }
  all.push_back({"tp", "4", "dp: 2", false, "begin"});
  // Experts over ranks of tp and cp, and parts of their widths.
  all.push_back({"etp", "2", "tp: 2, dp: 2, ep: 2", true, "group"});
  all.push_back({"etp", "2", "tp: 4, sequence_parallel: true, ep: 2, micro_batch: 2", true, ""});
  all.push_back({"ep", "4", "cp: 2, dp: 2", true, "group"});
  all.push_back(
      {"ep", "8", "cp: 2, dp: 2, tp: 2, micro_batch: 2, sequence_parallel: true", true, "group"});
  // Rows that go to the node of their expert first, then to its rank; and that are sent so in
  // pieces.
  all.push_back({"ep_inner", "2", "dp: 4, ep: 4", true, "group"});
  all.push_back({"ep_inner", "2", "pp: 2, dp: 4, ep: 4, recompute: full", true, "letter"});
  all.push_back({"ep_inner", "2", "dp: 8, ep: 8, moe_chunks: 3", true, "group"});
  // Vocabulary, heads and MLPs in parts; parameters gathered, freed and gathered again.
  all.push_back({"tp", "2", "dp: 2", false, "begin"});
  all.push_back({"tp", "4", "pp: 2, layouts: ['*_proj.weight B']", false, "letter"});
  all.push_back({"shard", "{params: all}", "dp: 2, pp: 2", false, "group"});
  all.push_back({"shard", "{params: all, grads: all}", "dp: 4, ep: 2", true, "group"});
  // Inside groups of ranks, and further among all.
  all.push_back({"shard", "{params: group, grads: group, optimizer: all, group: 2}", "dp: 4", false,
                 "group"});
  all.push_back({"shard", "{params: group, grads: all, group: 4}", "dp: 8, ep: 2", true, "group"});
  // Sums as messages around rings; around rings of rings; and of two, which halve and double.
  for (const char* plan : {"dp: 3", "dp: 4, tp: 2", "cp: 2, pp: 2, bucket_mib: 0.002"}) {
    all.push_back({"all_reduce", "ring", plan, false, "view"});
  }
  for (const char* plan : {"dp: 6, ep: 2", "dp: 8, ep: 4, ep_inner: 2"}) {
    all.push_back({"all_reduce", "ring", plan, true, "message"});
  }
  // By halves, to ranks a power of two apart; the rest of six ranks uses a ring.
  for (const char* plan : {"dp: 4", "dp: 8", "dp: 6, bucket_mib: 0.002", "dp: 4, pp: 2, tp: 2"}) {
    all.push_back({"all_reduce", "halving_doubling", plan, false, "message"});
  }
  all.push_back({"all_reduce", "halving_doubling", "dp: 8, ep: 2", true, "both-ends"});
  all.push_back({"reduce_scatter", "halving_doubling",
                 "dp: 4, all_gather: halving_doubling, shard: {params: all, grads: all}", false,
                 "message"});
  // Gradients of keys, by ranks that share a key head, in pieces that are no whole tokens.
  all.push_back({"all_reduce", "ring", "cp: 2, tp: 4", false, "view"});
  all.push_back({"all_reduce", "halving_doubling", "cp: 2, tp: 4", false, "message"});
  // Inside of nodes first; and in pieces, of one axis and of several.
  for (const char* plan : {"dp: 4, ranks_per_node: 2", "dp: 4, tp: 2, ranks_per_node: 4"}) {
    all.push_back({"all_reduce", "hierarchical", plan, false, "message"});
    all.push_back({"all_reduce", "ho_ring", plan, false, "view"});
  }
  all.push_back({"reduce_scatter", "ho_ring",
                 "dp: 4, ranks_per_node: 2, all_gather: ho_ring, shard: {params: all, grads: all}",
                 false, "view"});
  add_schedules(&all);
  if (is_sanitized()) {
    // Every fifth one, and so some of each kind.
    std::vector<Row> some;
    for (size_t i = 0; i < all.size(); i += 5) {
      some.push_back(all[i]);
    }
    return some;
  }
  return all;
}

/// Two layers with these settings of the plan, in an element type.
Case model(const std::string& plan, bool moe, const char* dtype = "f64") {
  Case c;
  c.seed = 11;
  c.name = plan + (moe ? ", experts" : "");
  c.text = fmt::format(
      "model:\n  dtype: {}\n  config: {{model_type: {}, vocab_size: 24, hidden_size: 8, "
      "num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, head_dim: 4, "
      "intermediate_size: 12, rms_norm_eps: 1.0e-6, rope_theta: 10000.0, tie_word_embeddings: "
      "false, max_position_embeddings: 64, hidden_act: silu{}}}\n"
      "train: {{seq_len: 6, global_batch: 24, warmup_steps: 0, lr: 0.01}}\n"
      "plan: {{{}, threads_per_rank: 1, timeout_s: 60}}\n",
      dtype, moe ? "qwen3_moe" : "llama",
      moe ? ", num_experts: 8, num_experts_per_tok: 2, moe_intermediate_size: 4, norm_topk_prob: "
            "true, router_aux_loss_coef: 0.05, decoder_sparse_step: 1, mlp_only_layers: []"
          : "",
      plan);
  return c;
}
Case with_key(const Row& row) {
  return model(fmt::format("{}, {}: {}", row.plan, row.key, row.value), row.moe);
}

engine::Compiled compiled(const Case& c) {
  return engine::compile(engine::parse_run(c.text, c.name, {}));
}

/// The first row of each key and value, and every sixth of the others; all with HOCKET_LONG=1.
std::vector<Row> rows_to_run() {
  std::vector<Row> some;
  std::set<std::pair<std::string, std::string>> seen;
  size_t others = 0;
  for (const Row& row : rows()) {
    if (is_long() || seen.emplace(row.key, row.value).second || others++ % 6 == 0) {
      some.push_back(row);
    }
  }
  return some;
}

TEST(Rewrites, ProvenEqualAndSimulated) {
  std::cout << (is_long() ? "" : "not every row; HOCKET_LONG=1 takes all\n");
  for (const Row& row : rows_to_run()) {
    const Case c = with_key(row);
    SCOPED_TRACE(c.name);
    engine::Compiled made = compiled(c), plain = compiled(model(row.plan, row.moe));
    const check::Verdict verdict = check::check(made.program, made.reference);
    ASSERT_TRUE(verdict.ok()) << to_text(verdict);
    EXPECT_TRUE(verdict.losses.empty());
    made.program.config.clear();
    plain.program.config.clear();
    EXPECT_FALSE(made.program == plain.program) << "the key changes nothing";
    const cost::CostModel costs(one_node(made.program.num_ranks()), std::nullopt, 1);
    EXPECT_GT(sim::simulate(made.program, costs, {}).step_ns, 0);
    Outcome many;
    ASSERT_NO_THROW(many = train(c, {.steps = 2, .poison = true}));
    EXPECT_EQ(difference(many, train(c, {.on_one_rank = true, .steps = 2})), "");
    if (HasFailure()) return;
  }
}

/// A parallel block scatters the sum of its branches, with or without dropout. The scatter is tiled
/// with the product of the last branch.
TEST(Rewrites, TilesOfSumsTakeTheirProductAlong) {
  for (const char* plan : {"tp: 2, sequence_parallel: true, comm_tiles: 2",
                           "tp: 4, sequence_parallel: true, micro_batch: 4, comm_tiles: 7",
                           "pp: 2, tp: 2, dp: 2, sequence_parallel: true, comm_tiles: 4, "
                           "recompute: full"}) {
    for (const char* dropout : {"0", "0.25"}) {
      Case c = model(plan, false);
      c.text.replace(c.text.find("model_type: llama"), 17, "model_type: parallel_llama");
      c.text.replace(c.text.find("train: {"), 8, fmt::format("train: {{dropout: {}, ", dropout));
      SCOPED_TRACE(c.name + ", dropout " + dropout);
      const engine::Compiled made = compiled(c);
      const check::Verdict verdict = check::check(made.program, made.reference);
      ASSERT_TRUE(verdict.ok()) << to_text(verdict);
      // A sum of branches comes right behind a block of the product, or behind that block's
      // dropout.
      const program::RankClass& cls = made.program.classes[0];
      int sums = 0;
      for (size_t i = 1; i < cls.tasks.size(); ++i) {
        const program::Task& sum = cls.tasks[i];
        const program::Task& before = cls.tasks[i - 1];
        if (made.program.kind(sum).op != "add" || sum.lane != program::Lane::compute) continue;
        const bool follows =
            std::find(sum.in.begin(), sum.in.end(), before.out[0]) != sum.in.end() &&
            cls.buffers[before.out[0]].kind == program::BufferKind::view;
        sums += follows;
      }
      EXPECT_GE(sums, 2);
      EXPECT_EQ(difference(train(c, {.steps = 2, .poison = true}),
                           train(c, {.on_one_rank = true, .steps = 2})),
                "");
    }
  }
}

/// The gradient of a table that is read twice is a sum of two terms with rows of different
/// addends.
TEST(Rewrites, TilesOfTiedTablesAreJoined) {
  for (const char* plan :
       {"cp: 2, tp: 2, dp: 2", "cp: 2, tp: 2, dp: 2, shard: {optimizer: all}",
        "cp: 2, tp: 2, dp: 2, shard: {params: all}", "cp: 2, tp: 2, dp: 2, shard: {grads: all}",
        "tp: 2, dp: 4, shard: {grads: group, optimizer: all, group: 2}"}) {
    for (const char* tiles : {"2", "3"}) {
      Case c = model(fmt::format("{}, comm_tiles: {}", plan, tiles), false);
      c.text.replace(c.text.find("tie_word_embeddings: false"), 26, "tie_word_embeddings: true");
      SCOPED_TRACE(c.name);
      const engine::Compiled made = compiled(c);
      const check::Verdict verdict = check::check(made.program, made.reference);
      ASSERT_TRUE(verdict.ok()) << to_text(verdict);
      EXPECT_EQ(difference(train(c, {.steps = 2, .poison = true}),
                           train(c, {.on_one_rank = true, .steps = 2})),
                "");
    }
  }
}

/// HOCKET_MUTANTS=200 HOCKET_SEED=S: how many mutants of each row, and which; of every fifth row,
/// unless HOCKET_LONG=1.
TEST(Rewrites, MutantsAreRefusedOrEqual) {
  const std::vector<Row> all = rows();
  const uint64_t mutants = from_environment("HOCKET_MUTANTS", fewer(20));
  const uint64_t seed = from_environment("HOCKET_SEED", 1);
  std::cout << "HOCKET_SEED=" << seed << " HOCKET_MUTANTS=" << mutants << "\n";
  const size_t step = is_long() ? 1 : 5;
  std::cout << (step == 1 ? "" : "every fifth row; HOCKET_LONG=1 takes all\n");
  for (size_t number = seed % step; number < all.size(); number += step) {
    const Case c = with_key(all[number]);
    const MutantCounts counts = try_mutants(c, mutants, seed * 100 + number, all[number].mutation);
    std::cout << c.name << ": " << counts.refused << " refused, of these " << counts.far
              << " far behind; " << counts.equal << " accepted and equal to one rank\n";
    // A part of a sum that is missing may be refused where the sum is used, behind its codes.
    const bool coded = c.name.find("grad_codec") != std::string::npos;
    EXPECT_LE(counts.far, coded ? 1 + mutants / 5 : 1 + mutants / 50) << counts.far_first;
    EXPECT_GE(2 * counts.refused, mutants);
    EXPECT_GE(counts.refused + counts.equal, mutants * 3 / 4);
  }
}

/// Returns the predicted step of a wide dense model on ranks with links of this bandwidth.
double predicted(const std::string& plan, double bytes_per_second,
                 const std::string& type = "llama") {
  const std::string text = fmt::format(
      "model: {{config: {{model_type: {}, vocab_size: 512, hidden_size: 1024, "
      "num_hidden_layers: 2, num_attention_heads: 8, num_key_value_heads: 8, head_dim: 128, "
      "intermediate_size: 2048, rms_norm_eps: 1.0e-6, rope_theta: 10000.0, "
      "tie_word_embeddings: false, max_position_embeddings: 2048, hidden_act: silu}}}}\n"
      "train: {{seq_len: 2048, global_batch: 4}}\nplan: {{{}}}\n",
      type, plan);
  const program::Program program = compiled({text, "wide", 1}).program;
  cost::Cluster cluster = one_node(program.num_ranks());
  cluster.links.intra.bandwidth.value = bytes_per_second;
  const cost::CostModel costs(cluster, std::nullopt, 1);
  return static_cast<double>(sim::simulate(program, costs, {}).step_ns);
}

/// On slow links, blocks hide the movement of rows behind products, and codes are fewer bytes.
TEST(Rewrites, ShortenTheStepWhereLinksAreSlow) {
  const auto tiles = [](int64_t blocks) {
    return predicted(fmt::format("tp: 4, micro_batch: 4, comm_tiles: {}", blocks), 1e9);
  };
  EXPECT_LT(tiles(4), 0.97 * tiles(1));
  const auto along_rows = [](int64_t blocks) {
    return predicted(
        fmt::format("tp: 4, sequence_parallel: true, micro_batch: 4, comm_tiles: {}", blocks), 1e9);
  };
  EXPECT_LT(along_rows(7), 0.97 * along_rows(1));
  // The scatter of a parallel block hides behind the product of the second branch.
  const auto parallel_block = [](int64_t blocks) {
    return predicted(
        fmt::format("tp: 4, sequence_parallel: true, micro_batch: 4, comm_tiles: {}", blocks), 1e9,
        "parallel_llama");
  };
  EXPECT_LT(parallel_block(7), 0.97 * parallel_block(1));
  EXPECT_LT(predicted("dp: 4, grad_codec: int8", 1e8), 0.6 * predicted("dp: 4", 1e8));
}

/// Products in blocks in which ranks have parts of the rows; tables that are read twice, in parts;
/// ranks with uneven rows and reductions over different routes.
TEST(Rewrites, ALossyCodecTakesAnyPlan) {
  const std::string codec = "grad_codec: int8, ";
  for (const bool tied : {false, true}) {
    for (const char* plan :
         {"tp: 2, dp: 2, comm_tiles: 2, micro_batch: 2",
          "cp: 3, dp: 2, shard: {optimizer: all, least_kib: 1}", "tp: 3, dp: 3"}) {
      Case c = model(codec + plan, false, "f32");
      c.text.replace(c.text.find("tie_word_embeddings: false"), 26,
                     fmt::format("tie_word_embeddings: {}", tied));
      SCOPED_TRACE(c.name);
      const engine::Compiled made = compiled(c);
      const check::Verdict verdict = check::check(made.program, made.reference);
      EXPECT_TRUE(verdict.ok()) << to_text(verdict);
      EXPECT_FALSE(verdict.losses.empty());
    }
  }
}

/// The check names the losses of the gradients of plan.grad_codec_of, and of no other.
TEST(Rewrites, ACodecAppliesOnlyToTheNamedGradients) {
  for (const char* plan : {"dp: 2", "dp: 2, bucket_mib: 0", "pp: 2, dp: 2, all_reduce: ring"}) {
    const Case c = model(
        fmt::format("{}, grad_codec_of: ['*.0.mlp.down_proj.weight int8', '*.1.* none']", plan),
        false, "f32");
    SCOPED_TRACE(c.name);
    const engine::Compiled made = compiled(c);
    const check::Verdict verdict = check::check(made.program, made.reference);
    EXPECT_TRUE(verdict.ok()) << to_text(verdict);
    EXPECT_FALSE(verdict.losses.empty());
    int encoded = 0;
    for (const program::Task& task : made.program.classes[0].tasks) {
      encoded += made.program.kind(task).op == "encode_int8" ? 1 : 0;
    }
    EXPECT_GE(encoded, 1);
    EXPECT_LE(encoded, 2);  // the gradient, and the sum of a block of it
  }
}

/// At once a gradient is encoded once, and all of its codes come from all others; by blocks its sum
/// is encoded, too, and gathered.
TEST(Rewrites, CodesTakeTheGivenRoute) {
  for (const auto& [route, encoded, gathered] :
       std::initializer_list<std::tuple<const char*, int, int>>{{" at_once", 1, 0},
                                                                {" by_blocks", 2, 1}}) {
    for (const char* dp : {"dp: 2", "dp: 4"}) {
      const Case c =
          model(fmt::format("{}, grad_codec_of: ['*.0.mlp.down_proj.weight int8{}']", dp, route),
                false, "f32");
      SCOPED_TRACE(c.text);
      const engine::Compiled made = compiled(c);
      const check::Verdict verdict = check::check(made.program, made.reference);
      EXPECT_TRUE(verdict.ok()) << to_text(verdict);
      int encodes = 0, gathers = 0;
      for (const program::Task& task : made.program.classes[0].tasks) {
        const program::Kind& kind = made.program.kind(task);
        encodes += kind.op == "encode_int8" ? 1 : 0;
        gathers += kind.op == "all_gather" && kind.in[0].dtype == graph::DType::i8 ? 1 : 0;
      }
      EXPECT_EQ(encodes, encoded);
      EXPECT_EQ(gathers, gathered);
    }
  }
}

/// The host encodes, decodes and adds up; buffers sent over links are on the device, and are copied
/// there.
TEST(Rewrites, CodecsRunOnTheHostIfAsked) {
  using program::Lane;
  for (const char* route : {"", " at_once", " by_blocks"}) {
    const Case c = model(
        fmt::format("dp: 4, bucket_mib: 0, grad_codec_of: ['*.0.mlp.down_proj.weight int8{} host']",
                    route),
        false, "f32");
    SCOPED_TRACE(c.text);
    const engine::Compiled made = compiled(c);
    const check::Verdict verdict = check::check(made.program, made.reference);
    EXPECT_TRUE(verdict.ok()) << to_text(verdict);
    ASSERT_FALSE(verdict.losses.empty());
    int copies = 0;
    for (const program::Task& task : made.program.classes[0].tasks) {
      const std::string& op = made.program.kind(task).op;
      EXPECT_EQ(op.ends_with("_int8"), task.lane == Lane::host && op != "add") << op;
      copies += program::is_of_host(task.lane) && op == "copy" ? 1 : 0;
    }
    EXPECT_GT(copies, 2);
    EXPECT_GT(made.program.classes[0].host_arena_bytes, 0);
  }
}

TEST(Rewrites, CodecsOfOtherTensorsThanGradientsAreRefused) {
  const auto refused = [](const std::string& plan) {
    try {
      compiled(model(plan, false, "f32"));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  for (const auto& [plan, why] : std::initializer_list<std::pair<const char*, const char*>>{
           {"dp: 2, grad_codec_of: ['*.bias int8']", "'*.bias int8' matches no gradient"},
           {"dp: 2, grad_codec_of: ['*norm.weight int8']", "matches no gradient"},
           {"dp: 2, grad_codec_of: ['lm_head.weight int7']", "expected PATTERN CODEC"},
           {"dp: 2, grad_codec_of: [lm_head.weight]", "expected PATTERN CODEC"},
           {"dp: 2, grad_codec_of: ['* none at_once']", "expected PATTERN CODEC"},
           {"dp: 2, grad_codec_of: ['* at_once']", "expected PATTERN CODEC"},
           {"dp: 2, grad_codec_of: ['* none host']", "expected PATTERN CODEC"},
           {"dp: 2, grad_codec_of: ['* host']", "expected PATTERN CODEC"},
           {"dp: 2, grad_codec_of: ['* int8 host by_blocks']", "expected PATTERN CODEC"},
           {"dp: 2, grad_codec_of: ['int8 by_blocks']", "expected PATTERN CODEC"},
           {"dp: 2, grad_codec: int8, grad_codec_of: ['*.9.* none']", "'*.9.* none' matches no"}}) {
    EXPECT_NE(refused(plan).find(why), std::string::npos) << plan << "\n" << refused(plan);
  }
  // Without a gradient to reduce, or without any gradient, nothing is refused.
  EXPECT_EQ(refused("tp: 2, grad_codec_of: ['* int8']"), "");
  const Case c = model("dp: 2, grad_codec_of: ['*down_proj.weight int8']", false, "f32");
  EXPECT_NO_THROW(engine::compile(engine::losses(engine::parse_run(c.text, c.name, {}))));
}

/// Every rank decodes its own part as well: replicas stay equal to the bit, and near the exact
/// step.
TEST(Rewrites, ALossyCodecIsReportedAndKeepsReplicasEqual) {
  for (const char* plan : {"dp: 2, grad_codec: int8", "dp: 4, grad_codec: int8"}) {
    const Case c = model(plan, false, "f32");
    SCOPED_TRACE(c.name);
    engine::Run run = engine::parse_run(c.text, c.name, {});
    engine::Compiled made = engine::compile(run);
    const check::Verdict verdict = check::check(made.program, made.reference);
    ASSERT_TRUE(verdict.ok()) << to_text(verdict);
    ASSERT_FALSE(verdict.losses.empty());
    EXPECT_EQ(verdict.losses[0].codec, "int8");
    runtime::LocalRanks ranks(made.program.num_ranks(), kernels::cpu_backend(), {});
    const runtime::Store store(ranks);
    engine::initialise(made.reference, made.program, c.seed, store);
    const program::Program program = made.program;
    engine::Session session(std::move(made), store);
    std::vector<double> losses;
    for (int step = 0; step < 8; ++step) {
      session.feed(random_batch(session.compiled(), run, step, c.seed));
      session.step();
      losses.push_back(
          session.collect_as<double>(session.graph().tensor(session.graph().losses[0]).name)[0]);
    }
    for (const program::Buffer& buffer : program.classes[0].buffers) {
      if (buffer.kind != program::BufferKind::persistent) continue;
      const auto bytes = [&](int32_t rank) {
        const auto* data = store.at(rank).get(buffer, program).data;
        return std::string(reinterpret_cast<const char*>(data),
                           static_cast<size_t>(buffer.type.bytes()));
      };
      for (int32_t rank = 1; rank < program.num_ranks(); ++rank) {
        EXPECT_TRUE(bytes(rank) == bytes(0)) << buffer.name << " on rank " << rank;
      }
    }
    const Outcome exact =
        train(c, {.steps = 8, .overrides = {"plan.grad_codec=none"}, .with_grads = false});
    for (size_t step = 0; step < losses.size(); ++step) {
      EXPECT_NEAR(losses[step], exact.losses[step], 0.02 * exact.losses[step]) << step;
    }
  }
}

}  // namespace
}  // namespace hocket::test::rewrites_test
