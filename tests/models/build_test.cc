// SPDX-License-Identifier: Apache-2.0
// Graphs of all families in all modes, their weight-name map, and parameter counts of a published
// model.
#include "models/build.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "models/weights.h"
#include "ops/op.h"
#include "tests/models/small_models.h"

namespace hocket::models {
namespace {

using graph::Dims;
using graph::Graph;
using graph::TensorKind;
using nlohmann::json;
using Mode = BuildOptions::Mode;

ModelConfig config(const std::string& family, const json& patch = {}) {
  json c = small_model(family);
  if (patch.is_object()) {
    c.update(patch);
  }
  return parse_config(c.dump(), "test");
}

BuildOptions options(Mode mode) {
  BuildOptions o;
  o.mode = mode;
  o.tokens = 16;
  o.sequence_length = 8;
  o.dtype = graph::DType::f64;
  o.generation = {.sequences = 2, .longest = 32, .pages = 4, .rows = 4};
  o.balance_coef = 0.5;
  o.num_micro_batches = 4;
  return o;
}

const graph::Tensor& get(const Graph& g, const std::string& name) {
  const graph::TensorId id = g.find(name);
  EXPECT_NE(id, graph::kNone) << name;
  return g.tensors[std::max(id, 0)];
}

int count(const Graph& g, std::string_view op) {
  return static_cast<int>(
      std::count_if(g.nodes.begin(), g.nodes.end(), [&](const auto& n) { return n.op == op; }));
}

// Names unique, producers before users, types as inferred, layers in order.
void expect_well_formed(const Graph& g) {
  std::set<std::string> names;
  for (const graph::Tensor& t : g.tensors) {
    EXPECT_TRUE(names.insert(t.name).second) << t.name;
  }
  std::vector<bool> ready(g.tensors.size());
  for (size_t i = 0; i < ready.size(); ++i) {
    ready[i] = g.tensors[i].producer == graph::kNone;
  }
  int32_t layer = -1;
  for (const graph::Node& n : g.nodes) {
    std::vector<graph::TensorType> in;
    for (graph::TensorId id : n.in) {
      EXPECT_TRUE(ready[id]) << g.tensor(id).name;
      in.push_back(g.tensor(id).type);
    }
    const auto out = ops::find(n.op).infer(n.attrs, in);
    ASSERT_EQ(out.size(), n.out.size());
    for (size_t i = 0; i < out.size(); ++i) {
      EXPECT_EQ(out[i], g.tensor(n.out[i]).type);
      ready[n.out[i]] = true;
    }
    EXPECT_GE(n.layer, layer) << n.op;
    layer = n.layer;
    EXPECT_EQ(n.phase, graph::Phase::forward);
  }
  EXPECT_EQ(layer, g.num_layers);
}

TEST(Build, AllFamiliesAndModesAreWellFormed) {
  for (const std::string& family : families()) {
    for (bool tied : {false, true}) {
      for (Mode mode : {Mode::train, Mode::logits, Mode::generate}) {
        SCOPED_TRACE(family + (tied ? " tied" : ""));
        const Graph g = build(config(family, {{"tie_word_embeddings", tied}}), options(mode));
        expect_well_formed(g);
        EXPECT_EQ(g.find("lm_head.weight") == graph::kNone, tied);
        EXPECT_EQ(g.losses.empty(), mode != Mode::train);
        EXPECT_EQ(count(g, mode == Mode::generate ? "attention_paged" : "attention"), 3);
        if (mode != Mode::train) {
          ASSERT_EQ(g.outputs.size(), mode == Mode::generate ? 5u : 1u);
          EXPECT_EQ(g.tensor(g.outputs[0]).name, "logits");
          EXPECT_EQ(to_string(g.tensor(g.outputs[0]).type),
                    mode == Mode::generate ? "f64[s3:4,37]" : "f64[16,37]");
        }
      }
    }
  }
}

TEST(Build, TrainHasLossesCountsAndInputs) {
  const Graph g = build(config("qwen3_moe"), options(Mode::train));
  ASSERT_EQ(g.losses.size(), 3u);
  EXPECT_EQ(g.tensor(g.losses[0]).name, "loss");
  EXPECT_EQ(g.tensor(g.losses[1]).name, "moe.balance.0");
  EXPECT_EQ(g.tensor(g.losses[2]).name, "moe.balance.2");
  ASSERT_EQ(g.outputs.size(), 2u);
  EXPECT_EQ(g.tensor(g.outputs[1]).name, "moe.counts.2");
  EXPECT_EQ(get(g, "loss_scale").per_step, true);
  EXPECT_EQ(get(g, "targets").per_step, false);
  for (const graph::Node& n : g.nodes) {
    if (n.op == "balance_loss") {
      EXPECT_EQ(n.attrs.f("coef"), 0.125);  // 0.5 over 4 micro-batches
      EXPECT_EQ(n.attrs.i("top_k"), 2);
    }
    if (n.op == "linear_cross_entropy") {
      EXPECT_EQ(n.attrs.i("grad"), 1);
    }
    if (n.op == "attention") {
      EXPECT_EQ(n.attrs.f("scale"), 1 / std::sqrt(10.0));
      EXPECT_EQ(n.attrs.i("group"), 2);
    }
  }
  BuildOptions o = options(Mode::train);
  o.grad = false;
  o.balance_coef = 0;
  const Graph eval = build(config("qwen3_moe"), o);
  EXPECT_EQ(eval.losses.size(), 1u);
  for (const graph::Node& n : eval.nodes) {
    if (n.op == "linear_cross_entropy") {
      EXPECT_EQ(n.attrs.i("grad"), 0);
    }
  }
}

TEST(Build, MetricsOfTokensAreOutputsBesideTheLoss) {
  for (const bool grad : {true, false}) {
    BuildOptions o = options(Mode::train);
    o.grad = grad;
    o.token_metrics = true;
    const Graph g = build(config("llama"), o);
    expect_well_formed(g);
    EXPECT_EQ(g.losses.size(), 1u);
    ASSERT_EQ(g.outputs.size(), 2u);
    for (const char* name : {"entropy_sum", "misses_sum"}) {
      EXPECT_EQ(to_string(get(g, name).type), "f64[1]");
    }
  }
}

TEST(Build, ParamsHaveTheStatedShapesAndInit) {
  const Graph g = build(config("qwen3_moe"), options(Mode::train));
  const std::map<std::string, Dims> shapes = {
      {"model.embed_tokens.weight", {37, 24}},
      {"model.layers.0.self_attn.q_proj.weight", {4, 10, 24}},
      {"model.layers.0.self_attn.k_proj.weight", {2, 10, 24}},
      {"model.layers.0.self_attn.o_proj.weight", {24, 4, 10}},
      {"model.layers.0.self_attn.q_norm.weight", {10}},
      {"model.layers.0.mlp.gate.weight", {4, 24}},
      {"model.layers.0.mlp.experts.gate_up_proj", {4, 2, 12, 24}},
      {"model.layers.0.mlp.experts.down_proj", {4, 24, 12}},
      {"model.layers.1.mlp.gate_up_proj.weight", {2, 20, 24}},
      {"model.layers.1.mlp.down_proj.weight", {24, 20}},
      {"model.norm.weight", {24}},
      {"lm_head.weight", {37, 24}}};
  for (const auto& [name, dims] : shapes) {
    EXPECT_EQ(get(g, name).type.dims, dims) << name;
    EXPECT_EQ(get(g, name).kind, TensorKind::param) << name;
    EXPECT_EQ(get(g, name).expert, name.find("experts") != name.npos) << name;
  }
  using Kind = graph::Init::Kind;
  EXPECT_EQ(get(g, "model.norm.weight").init.kind, Kind::constant);
  EXPECT_EQ(get(g, "model.norm.weight").init.value, 1);
  EXPECT_EQ(get(g, "lm_head.weight").init.kind, Kind::normal);
  EXPECT_EQ(get(g, "lm_head.weight").init.value, 0.02);
  const double scaled = 0.02 / std::sqrt(6.0);
  EXPECT_EQ(get(g, "model.layers.0.self_attn.o_proj.weight").init.value, scaled);
  EXPECT_EQ(get(g, "model.layers.0.mlp.experts.down_proj").init.value, scaled);
  EXPECT_EQ(get(g, "model.layers.1.mlp.down_proj.weight").init.value, scaled);
  EXPECT_EQ(get(g, "model.embed_tokens.weight").layer, -1);
  EXPECT_EQ(get(g, "model.layers.2.mlp.gate.weight").layer, 2);
  EXPECT_EQ(get(g, "lm_head.weight").layer, 3);
}

TEST(Build, GenerateHasACachePerLayer) {
  const Graph g = build(config("llama"), options(Mode::generate));
  for (const auto& [which, type] : {std::pair{"k", "f64[4,2,10,32]"}, {"v", "f64[4,2,32,10]"}}) {
    const std::string name = std::string("model.layers.2.attn.") + which + "_pages";
    const graph::Tensor& t = get(g, name);
    EXPECT_EQ(t.kind, TensorKind::state);
    EXPECT_EQ(to_string(t.type), type);
    EXPECT_EQ(t.layer, 2);
  }
}

TEST(Build, AWindowReachesTheOpUnlessItHoldsAllTokens) {
  const auto window = [](Mode mode, int64_t size) {
    const Graph g = build(config("mistral", {{"sliding_window", size}}), options(mode));
    std::set<int64_t> windows;
    for (const graph::Node& n : g.nodes) {
      if (n.op == "attention" || n.op == "attention_paged") {
        windows.insert(n.attrs.i_or("window", 0));
      }
    }
    EXPECT_EQ(windows.size(), 1u);
    return *windows.begin();
  };
  EXPECT_EQ(window(Mode::train, 7), 7);
  EXPECT_EQ(window(Mode::train, 8), 0);  // the length of a sequence
  EXPECT_EQ(window(Mode::logits, 3), 3);
  EXPECT_EQ(window(Mode::generate, 31), 31);
  EXPECT_EQ(window(Mode::generate, 32), 0);  // the number of slots
}

TEST(Build, RopeScalingReachesTheOp) {
  const json scaling = {{"rope_type", "llama3"},
                        {"factor", 8.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 16}};
  const Graph g = build(config("llama", {{"rope_scaling", scaling}, {"rope_theta", 5e5}}),
                        options(Mode::logits));
  EXPECT_EQ(count(g, "rope"), 6);
  for (const graph::Node& n : g.nodes) {
    if (n.op != "rope") continue;
    EXPECT_EQ(n.attrs.s("scaling"), "llama3");
    EXPECT_EQ(n.attrs.f("theta"), 5e5);
    EXPECT_EQ(n.attrs.f("factor"), 8);
    EXPECT_EQ(n.attrs.f("original_max_position"), 16);
  }
}

TEST(Build, FactorsOfEmbeddingsAreRoundedAsInTransformers) {
  const auto factor = [](const std::string& family, const json& patch) {
    BuildOptions bf16 = options(Mode::logits);
    bf16.dtype = graph::DType::bf16;
    const Graph g = build(config(family, patch), bf16);
    const graph::NodeId node = get(g, "model.embed_tokens.scaled").producer;
    return g.nodes[static_cast<size_t>(node)].attrs.f("factor");
  };
  EXPECT_EQ(factor("granite", {{"embedding_multiplier", 12.3}}), 12.3);
  EXPECT_EQ(factor("gemma2", json()), 4.90625);  // sqrt(24)
}

TEST(Build, BadOptionsAreErrors) {
  const ModelConfig c = config("llama");
  BuildOptions o = options(Mode::train);
  o.tokens = 0;
  EXPECT_THROW(build(c, o), Error);
  o.tokens = 12;  // not a multiple of 8
  EXPECT_THROW(build(c, o), Error);
  o = options(Mode::generate);
  o.generation.pages = 0;
  EXPECT_THROW(build(c, o), Error);
  o = options(Mode::train);
  o.dtype = graph::DType::i32;
  EXPECT_THROW(build(c, o), Error);
}

// Runs of any range give its elements, of any strides.
TEST(WeightRuns, ReadTheElementsOfARange) {
  std::vector<WeightSlice> slices;
  const FileRows some{10, 2, 6, 6, 6}, by_head{12, 2, 4, 2, 6};
  for (const bool transposed : {false, true}) {
    for (const int64_t columns : {0, 1, 5}) {
      for (const FileRows& rows : {FileRows::all(7), some, by_head}) {
        slices.push_back(slice_of_rows("w", rows, columns, transposed, 3));
      }
    }
  }
  for (const WeightSlice& slice : slices) {
    // Every element of the slice, by its place in the tensor.
    std::vector<int64_t> places(static_cast<size_t>(slice.numel()));
    for (size_t i = 0; i < places.size(); ++i) {
      int64_t at = slice.begin, rest = static_cast<int64_t>(i);
      for (size_t axis = slice.axes.size(); axis-- > 0;) {
        at += rest % slice.axes[axis].size * slice.axes[axis].stride;
        rest /= slice.axes[axis].size;
      }
      places[i] = slice.is_whole() ? static_cast<int64_t>(i) : at;
    }
    for (int64_t first = 0; first < slice.numel(); ++first) {
      for (int64_t count = 0; first + count <= slice.numel(); ++count) {
        std::vector<int64_t> got(static_cast<size_t>(count), -1);
        for_each_run(slice, slice.offset + first, count, [&](const WeightRun& run) {
          for (int64_t i = 0; i < run.count; ++i) {
            int64_t& place =
                got.at(static_cast<size_t>(run.element + i * run.stride - slice.offset - first));
            EXPECT_EQ(place, -1);
            place = run.stored + i;
          }
        });
        EXPECT_EQ(got, std::vector<int64_t>(places.begin() + first, places.begin() + first + count))
            << to_string(graph::TensorType{graph::DType::f32, slice.dims}) << " " << first;
      }
    }
  }
}

TEST(WeightMap, CoversEveryParameterOnceInOrder) {
  for (const std::string& family : families()) {
    for (bool tied : {false, true}) {
      const ModelConfig c = config(family, {{"tie_word_embeddings", tied}});
      const Graph g = build(c, options(Mode::train));
      const std::vector<ParamWeights> map = weight_map(c);
      std::vector<std::string> params, mapped;
      for (const graph::Tensor& t : g.tensors) {
        if (t.kind == TensorKind::param) {
          params.push_back(t.name);
        }
      }
      std::map<std::string, std::vector<int>> stored;  // how often each element of a tensor
      std::map<std::string, Dims> dims;
      for (const ParamWeights& w : map) {
        mapped.push_back(w.param);
        EXPECT_EQ(w.dims, get(g, w.param).type.dims);
        for (const WeightForm& form : w.forms) {
          int64_t at = 0;
          for (const WeightSlice& s : form) {
            EXPECT_EQ(s.offset, at) << s.name;
            at += s.numel();
          }
          EXPECT_EQ(at, get(g, w.param).type.numel()) << w.param;
        }
        for (const WeightSlice& s : w.forms[0]) {
          const auto& [known, fresh] = dims.emplace(s.name, s.dims);
          EXPECT_EQ(known->second, s.dims);
          std::vector<int>& seen = stored[s.name];
          seen.resize(static_cast<size_t>(WeightSlice{s.name, s.dims}.numel()));
          for_each_run(s, s.offset, s.numel(), [&](const WeightRun& run) {
            for (int64_t i = 0; i < run.count; ++i) {
              ++seen.at(static_cast<size_t>(run.stored + i));
            }
          });
        }
        EXPECT_EQ(!w.aliases.empty(), tied && w.param == "model.embed_tokens.weight");
      }
      EXPECT_EQ(params, mapped);
      for (const auto& [name, seen] : stored) {
        EXPECT_EQ(std::set<int>(seen.begin(), seen.end()), std::set<int>{1}) << name;
      }
    }
  }
}

TEST(ParamCount, EqualsThePublishedOneOfQwen3Of30B) {
  const char* root = std::getenv("HOCKET_SOURCE_DIR");
  const ModelConfig c =
      read_config(std::string(root == nullptr ? "." : root) + "/configs/models/qwen3-30b-a3b");
  BuildOptions o;
  o.tokens = 1;
  const Graph g = build(c, o);
  // Published: 30.5 B parameters, 3.3 B used by a token.
  EXPECT_EQ(param_count(g), 30532122624);
  EXPECT_NEAR(static_cast<double>(active_param_count(g)), 3.35e9, 0.01e9);
}

}  // namespace
}  // namespace hocket::models
