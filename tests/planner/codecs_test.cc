// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// The chosen codecs for gradients of small programs against all possible choices, on slow, medium
// and fast links.
#include "planner/codecs/codecs.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>

#include "base/error.h"
#include "base/file.h"
#include "check/check.h"
#include "run/compile.h"
#include "tests/compare_util.h"

namespace hocket::planner {
namespace {

/// A wide layer: seven gradients of two dims and more.
engine::Run run_of(const std::string& plan, int64_t layers = 1) {
  return engine::parse_run(
      fmt::format(
          "model: {{config: {{model_type: llama, vocab_size: 512, hidden_size: 512, "
          "num_hidden_layers: {}, num_attention_heads: 8, num_key_value_heads: 4, head_dim: "
          "64, intermediate_size: 1024, rms_norm_eps: 1.0e-6, rope_theta: 10000.0, "
          "tie_word_embeddings: false, max_position_embeddings: 2048, hidden_act: silu}}}}\n"
          "train: {{seq_len: 512, global_batch: 8}}\nplan: {{{}}}\n",
          layers, plan),
      "test", {});
}

/// Returns a cluster of single-device nodes, with links of this bandwidth between them.
std::string cluster_file(double bytes_per_s, double latency_us = 20, double host_bytes_per_s = 0) {
  const std::string path =
      ::testing::TempDir() +
      fmt::format("codecs_{:.0f}_{}_{:.0f}.yaml", bytes_per_s, latency_us, host_bytes_per_s);
  std::ofstream(path)
      << "name: test\nnodes: 4\ndevices_per_node: 1\ndevice:\n  name: test\n"
      << "  memory: {value: 4GB}\n  memory_bandwidth: {value: 20GB/s}\n"
      << "  launch: {value: 5us}\n  peak: {f32: {value: 200GFLOP/s}}\n"
      << "  efficiency: {matmul: {value: 1}, attention: {value: 1}, memory: {value: 1}}\n"
      << (host_bytes_per_s > 0
              ? fmt::format("  host: {{kernels: {{value: {:.0f}B/s}}, copies: {{value: 12GB/s}}, "
                            "copy_latency: {{value: 10us}}}}\n",
                            host_bytes_per_s)
              : "")
      << "links:\n"
      << "  intra: {latency: {value: 2us}, bandwidth: {value: 10GB/s}}\n"
      << fmt::format("  inter: {{latency: {{value: {}us}}, bandwidth: {{value: {:.0f}B/s}}}}\n",
                     latency_us, bytes_per_s);
  return path;
}

CodecTrial trial(const std::string& plan, double bytes_per_s, int64_t layers = 1) {
  return {run_of(plan, layers), cluster_file(bytes_per_s), std::nullopt, {"int8"}};
}

/// Returns the shortest step over all subsets of encoded transfers.
double brute_force_s(const CodecTrial& trial) {
  const size_t count = trial.transfers().size();
  double best = trial.simulate(CodecChoice(count, "none")).step_s;
  for (uint32_t subset = 1; subset < (1U << count); ++subset) {
    CodecChoice choice;
    for (size_t t = 0; t < count; ++t) {
      choice.emplace_back((subset >> t & 1) != 0 ? "int8" : "none");
    }
    best = std::min(best, trial.simulate(choice).step_s);
  }
  return best;
}

/// Expects the chosen codecs' step, simulated anew, to be near the best of none, all, and all
/// subsets.
void expect_near_the_best(const CodecTrial& trial) {
  const CodecResult result = choose_codecs(trial);
  ASSERT_LE(trial.transfers().size(), 8U);
  EXPECT_TRUE(result.complete);
  EXPECT_DOUBLE_EQ(trial.simulate(result.choice()).step_s, result.chosen.step_s);
  EXPECT_LE(result.chosen.step_s, result.none.step_s);
  ASSERT_EQ(result.all.size(), 1U);
  EXPECT_LE(result.chosen.step_s, result.all[0].second.step_s);
  const double best = brute_force_s(trial);
  EXPECT_LE(result.chosen.step_s, 1.03 * best);
}

TEST(Codecs, AreNearTheBestChoiceOfSingleGradients) {
  if (test::is_sanitized()) {
    GTEST_SKIP() << "a thousand steps are simulated: minutes under sanitizers";
  }
  for (const double link : {2e6, 60e6, 200e6, 600e6, 100e9}) {
    if (!test::is_long() && link != 60e6 && link != 600e6) continue;
    SCOPED_TRACE(link);
    expect_near_the_best(trial("dp: 4, micro_batch: 2, bucket_mib: 0", link));
  }
}

TEST(Codecs, AreNearTheBestChoiceOfBuckets) {
  if (test::is_sanitized()) {
    GTEST_SKIP() << "hundreds of steps are simulated: minutes under sanitizers";
  }
  for (const double link : {20e6, 200e6, 600e6}) {
    if (!test::is_long() && link != 200e6) continue;
    SCOPED_TRACE(link);
    expect_near_the_best(trial("dp: 4, micro_batch: 1, bucket_mib: 8", link, 2));
    expect_near_the_best(trial("dp: 4, micro_batch: 2, bucket_mib: 8, all_reduce: ring", link, 2));
  }
}

/// Stages of a pipeline have transfers of their own.
TEST(Codecs, AreNeverSlowerThanNoneOrAll) {
  for (const double link : {20e6, 200e6, 2e9}) {
    SCOPED_TRACE(link);
    const CodecTrial stages = trial("pp: 2, dp: 2, micro_batch: 2, bucket_mib: 4", link, 2);
    const CodecResult result = choose_codecs(stages);
    EXPECT_LE(result.chosen.step_s, result.none.step_s);
    EXPECT_LE(result.chosen.step_s, result.all[0].second.step_s);
  }
}

/// On slow links every gradient is worth its codec, on fast ones none.
TEST(Codecs, EncodeOnlyWhereLinksAreSlow) {
  const CodecTrial slow = trial("dp: 4, micro_batch: 2, bucket_mib: 0", 2e6);
  EXPECT_EQ(choose_codecs(slow).choice(), slow.all_by("int8"));
  const CodecTrial fast = trial("dp: 4, micro_batch: 2, bucket_mib: 0", 100e9);
  const CodecResult nothing = choose_codecs(fast);
  EXPECT_EQ(nothing.choice(), CodecChoice(fast.transfers().size(), "none"));
  EXPECT_DOUBLE_EQ(nothing.chosen.step_s, nothing.none.step_s);
}

/// With a high latency, fewer steps with more bytes are faster: all codes at once. With a low
/// bandwidth the route by blocks is. The choice is near the best of all codecs and routes.
TEST(Codecs, RoutesFollowLatencyAndBandwidth) {
  if (test::is_sanitized()) {
    GTEST_SKIP() << "hundreds of steps are simulated: minutes under sanitizers";
  }
  const auto choose = [](double bytes_per_s, double latency_us) {
    const CodecTrial buckets(run_of("dp: 4, micro_batch: 2, bucket_mib: 6"),
                             cluster_file(bytes_per_s, latency_us), std::nullopt, {"int8"});
    const CodecResult result = choose_codecs(buckets);
    // Every choice of no codec, int8 and its other route.
    const size_t count = buckets.transfers().size();
    EXPECT_LE(count, 5U);
    double best = result.none.step_s;
    CodecChoice choice(count, "none");
    const std::function<void(size_t)> all_from = [&](size_t t) {
      if (t == count) {
        best = std::min(best, buckets.simulate(choice).step_s);
        return;
      }
      choice[t] = "none";
      all_from(t + 1);
      for (const auto& [codec, parameters] : buckets.transfers()[t].taken_by) {
        choice[t] = codec;
        all_from(t + 1);
      }
    };
    all_from(0);
    EXPECT_LE(result.chosen.step_s, 1.03 * best);
    EXPECT_DOUBLE_EQ(buckets.simulate(result.choice()).step_s, result.chosen.step_s);
    return result.choice();
  };
  const auto chosen = [](const CodecChoice& choice, const char* what) {
    return std::count(choice.begin(), choice.end(), what);
  };
  EXPECT_GT(chosen(choose(60e6, 2000), "int8 at_once"), 0);
  const CodecChoice slow = choose(5e6, 20);
  EXPECT_EQ(chosen(slow, "int8 at_once"), 0);
  EXPECT_GT(chosen(slow, "int8"), 0);
}

/// A stop ends any simulation except the first one, the reference for all others. The second one
/// here encodes all gradients, the third single ones.
TEST(Codecs, AStopEndsASimulation) {
  const CodecTrial slow = trial("dp: 4, micro_batch: 2, bucket_mib: 0", 2e6);
  for (const int64_t whole : {0, 1, 2}) {
    SCOPED_TRACE(whole);
    int64_t begun = 0;
    CodecSearchOptions options;
    options.progress = [&](int64_t simulated, double) {
      EXPECT_EQ(simulated, begun);
      ++begun;
    };
    options.stop = [&] { return begun > whole; };
    const CodecResult result = choose_codecs(slow, options);
    EXPECT_FALSE(result.complete);
    EXPECT_EQ(result.simulated, std::max<int64_t>(1, whole));
    EXPECT_EQ(begun, std::max<int64_t>(1, whole + 1));
    EXPECT_EQ(result.all.size(), whole < 2 ? 0U : 1U);
    EXPECT_LE(result.chosen.step_s, result.none.step_s);
    EXPECT_DOUBLE_EQ(slow.simulate(result.choice()).step_s, result.chosen.step_s);
    EXPECT_EQ(result.choice(),
              whole < 2 ? CodecChoice(slow.transfers().size(), "none") : slow.all_by("int8"));
  }
}

/// Gradients sent before links wait for a later gradient are not tried.
TEST(Codecs, SkipGradientsBeforeABubble) {
  const CodecTrial fast = trial("dp: 4, micro_batch: 2, bucket_mib: 0", 2e9);
  std::vector<std::optional<TransferTimes>> times;
  fast.simulate(CodecChoice(fast.transfers().size(), "none"), &times);
  const CodecResult result = choose_codecs(fast);
  int dropped = 0;
  for (size_t t = 0; t < times.size(); ++t) {
    ASSERT_TRUE(times[t]);
    dropped += result.decisions[t].dropped ? 1 : 0;
    EXPECT_FALSE(result.decisions[t].dropped && result.decisions[t].codec != "none");
    EXPECT_DOUBLE_EQ(result.decisions[t].gap_s, times[t]->gap_s);
  }
  EXPECT_GT(dropped, 0);
  EXPECT_FALSE(times.back()->before_bubble);
}

/// The resulting run is proven, and the check names the losses of the chosen gradients alone.
TEST(Codecs, AChoiceGivesAProvenRun) {
  const CodecTrial some = trial("dp: 4, micro_batch: 2, bucket_mib: 0", 200e6);
  CodecChoice choice(some.transfers().size(), "none");
  choice[1] = "int8";
  const engine::Compiled made = engine::compile(some.run_of(choice));
  const check::Verdict verdict = check::check(made.program, made.reference);
  EXPECT_TRUE(verdict.ok()) << to_text(verdict);
  EXPECT_FALSE(verdict.losses.empty());
}

/// Hosts as fast as devices take every encoding, slow ones none. Between, the choice is not slower
/// than devices alone or hosts alone, and near the best of all subsets of the encoded gradients.
TEST(Codecs, OffloadFollowsTheSpeedOfTheHosts) {
  if (test::is_sanitized()) {
    GTEST_SKIP() << "hundreds of steps are simulated: minutes under sanitizers";
  }
  size_t taken_before = 0;
  for (const double host : {1e7, 2e9, 20e9}) {
    SCOPED_TRACE(host);
    const CodecTrial codecs(run_of("dp: 4, micro_batch: 2, bucket_mib: 0"),
                            cluster_file(200e6, 20, host), std::nullopt, {"int8"});
    const CodecResult devices = choose_codecs(codecs);
    const CodecResult both = choose_codecs(codecs, {.offload = true});
    ASSERT_TRUE(both.offload);
    EXPECT_TRUE(both.offload->all_tried);
    EXPECT_LE(both.chosen.step_s, devices.chosen.step_s);
    for (const auto& [name, all] : both.all) {
      EXPECT_LE(both.chosen.step_s, all.step_s) << name;
    }
    const CodecChoice choice = both.choice();
    EXPECT_DOUBLE_EQ(codecs.simulate(choice).step_s, both.chosen.step_s);
    std::vector<size_t> encoded;
    size_t taken = 0;
    for (size_t t = 0; t < choice.size(); ++t) {
      if (choice[t] != "none") {
        encoded.push_back(t);
      }
      taken += choice[t].ends_with(" host") ? 1 : 0;
    }
    double best = both.chosen.step_s;
    for (uint32_t subset = 0; subset < (1U << encoded.size()); ++subset) {
      CodecChoice other = choice;
      for (size_t k = 0; k < encoded.size(); ++k) {
        const std::string codec = choice[encoded[k]].substr(0, choice[encoded[k]].find(" host"));
        other[encoded[k]] = (subset >> k & 1) != 0 ? codec + " host" : codec;
      }
      best = std::min(best, codecs.simulate(other).step_s);
    }
    EXPECT_LE(both.chosen.step_s, 1.03 * best);
    EXPECT_GE(taken, taken_before);
    taken_before = taken;
    if (host < 1e8) {
      EXPECT_EQ(taken, 0U);
    }
    const engine::Compiled made = engine::compile(codecs.run_of(choice));
    EXPECT_TRUE(check::check(made.program, made.reference).ok());
  }
  EXPECT_GT(taken_before, 0U);
}

/// In a heterogeneous cluster a choice must fit into the memory of every kind of node.
TEST(Codecs, FitIntoTheSmallestNode) {
  const std::string small = ::testing::TempDir() + "codecs_small.yaml";
  const std::string plain = cluster_file(60e6);
  std::string text = read_file(plain, 1 << 20);
  text.replace(text.find("4GB"), 3, "4MB");
  std::ofstream(small) << text;
  const std::string mixed = ::testing::TempDir() + "codecs_mixed.yaml";
  std::ofstream(mixed) << read_file(plain, 1 << 20)
                       << "heterogeneous_nodes: [{first: 3, cluster: codecs_small.yaml}]\n";
  const engine::Run run = run_of("dp: 4, micro_batch: 2, bucket_mib: 0");
  const auto fits = [&](const std::string& cluster) {
    const CodecTrial trial(run, cluster, std::nullopt, {"int8"});
    return trial.simulate(CodecChoice(trial.transfers().size(), "none")).fits;
  };
  EXPECT_TRUE(fits(plain));
  EXPECT_FALSE(fits(small));
  EXPECT_FALSE(fits(mixed));
}

/// Offload is refused if the cluster file has no speed of the hosts.
TEST(Codecs, OffloadNeedsToKnowTheHosts) {
  const CodecTrial codecs = trial("dp: 4, micro_batch: 2, bucket_mib: 0", 200e6);
  const auto why = [](const std::function<void()>& act) {
    try {
      act();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(why([&] { choose_codecs(codecs, {.offload = true}); }).find("device.host.kernels"),
            std::string::npos);
  EXPECT_NE(why([&] { codecs.simulate(codecs.all_by("int8 host")); }).find("device.host.kernels"),
            std::string::npos);
}

TEST(Codecs, RefuseUnknownCodecsAndPlansWithoutGradientReductions) {
  const auto refused = [](const std::string& plan, const std::vector<std::string>& codecs) {
    try {
      const CodecTrial trial(run_of(plan), cluster_file(1e9), std::nullopt, codecs);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(refused("dp: 4", {"int7"}).find("unknown codec 'int7'"), std::string::npos);
  EXPECT_NE(refused("tp: 4", {"int8"}).find("no gradient of this plan"), std::string::npos);
  EXPECT_NE(refused("dp: 4, passes: [bucket]", {"int8"}).find("lacks compress"), std::string::npos);
}

}  // namespace
}  // namespace hocket::planner
