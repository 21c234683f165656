// SPDX-License-Identifier: Apache-2.0
// Strict configuration: values, units, overrides and origins. Every kind of mistake is refused with
// its place and the nearest key. Printed configurations read back equal.
#include "base/config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/rng.h"
#include "tests/log_util.h"

namespace hocket {
namespace {

struct Source {
  std::string path;
  double weight = 1;
  void fields(Fields& v) {
    v("path", path, "glob of files").required();
    v("weight", weight, "share of the samples").min(0);
  }
};

struct Train {
  int64_t steps = 1000;
  double peak_lr = 3e-4;
  std::string dtype = "f32";
  std::optional<int64_t> seed;
  bool tie = false;
  void fields(Fields& v) {
    v("steps", steps, "optimizer steps").min(1);
    v("peak_lr", peak_lr, "learning rate after warm-up").min(0).max(1);
    v("dtype", dtype, "type of the parameters").one_of({"f32", "f64", "bf16"});
    v("seed", seed, "of everything random");
    v("tie", tie, "tie the embeddings");
  }
};

struct Plan {
  int64_t pp = 1;
  std::vector<int64_t> layers;
  std::vector<std::string> passes = {"recompute"};
  void fields(Fields& v) {
    v("pp", pp, "pipeline stages").min(1);
    v("layers", layers, "layers of each stage");
    v("passes", passes, "passes in order");
  }
};

struct RunConfig {
  std::string model;
  Train train;
  Plan plan;
  std::vector<Source> sources;
  double bandwidth = 50e9;
  int64_t memory = int64_t{80} << 30;
  std::map<std::string, std::string> labels;
  nlohmann::json extra;
  void fields(Fields& v) {
    v("model", model, "folder");
    v("train", train, "training");
    v("plan", plan, "parallelism");
    v("sources", sources, "text");
    v("bandwidth", bandwidth, "per direction").unit(Unit::bytes_s);
    v("memory", memory, "of a device").unit(Unit::bytes);
    v("labels", labels, "for the trace");
    v("extra", extra, "as it is");
  }
};

constexpr const char* kText = R"(# a run
model: m/x
train:
  steps: 20
  peak_lr: 1e-3
  seed: 7
plan: {pp: 2, layers: [3, 5]}
sources:
  - path: "/usr/**"
    weight: 2
  - path: b
bandwidth: 400Gbit/s
memory: 16GiB
labels: {who: me, n: 12}
extra: {a: [1, 2.5, x, "3", null, true]}
)";

std::string refused(const std::string& text, const std::vector<std::string>& sets = {}) {
  RunConfig run;
  try {
    parse_config(run, text, "run.yaml", sets);
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 2);
    return e.what();
  }
  ADD_FAILURE() << "accepted: " << text;
  return "";
}

TEST(Config, ReadsEveryType) {
  RunConfig run;
  const ResolvedConfig resolved = parse_config(run, kText, "run.yaml");
  EXPECT_EQ(run.model, "m/x");
  EXPECT_EQ(run.train.steps, 20);
  EXPECT_EQ(run.train.peak_lr, 1e-3);
  EXPECT_EQ(run.train.dtype, "f32");
  EXPECT_EQ(run.train.seed, 7);
  EXPECT_EQ(run.plan.layers, (std::vector<int64_t>{3, 5}));
  EXPECT_EQ(run.plan.passes, std::vector<std::string>{"recompute"});
  ASSERT_EQ(run.sources.size(), 2u);
  EXPECT_EQ(run.sources[0].path, "/usr/**");
  EXPECT_EQ(run.sources[0].weight, 2);
  EXPECT_EQ(run.sources[1].weight, 1);
  EXPECT_EQ(run.bandwidth, 50e9);
  EXPECT_EQ(run.memory, int64_t{16} << 30);
  EXPECT_EQ(run.labels, (std::map<std::string, std::string>{{"n", "12"}, {"who", "me"}}));
  EXPECT_EQ(run.extra, nlohmann::json::parse(R"({"a": [1, 2.5, "x", "3", null, true]})"));

  EXPECT_EQ(resolved.origin("train.steps"), "run.yaml:4");
  EXPECT_EQ(resolved.origin("plan.pp"), "run.yaml:7");
  EXPECT_EQ(resolved.origin("sources.1.path"), "run.yaml:11");
  EXPECT_TRUE(resolved.is_default("train.dtype"));
  EXPECT_EQ(resolved.to_json()["train"]["peak_lr"], 1e-3);
  EXPECT_EQ(resolved.to_json()["sources"][1]["path"], "b");
}

TEST(Config, EmptyFileAndEmptySectionsAreDefaults) {
  RunConfig run;
  EXPECT_TRUE(parse_config(run, "", "run.yaml").is_default("train"));
  parse_config(run, "train:\nplan: {}\n", "run.yaml");
  EXPECT_EQ(run.train.steps, 1000);
  EXPECT_EQ(run.train.seed, std::nullopt);
  parse_config(run, "train: {seed: null}\nplan: {passes: one}\n", "run.yaml");
  EXPECT_EQ(run.train.seed, std::nullopt);
  EXPECT_EQ(run.plan.passes, std::vector<std::string>{"one"});  // a value is a list of one
}

TEST(Config, OverridesReplaceKeysOfTheFile) {
  RunConfig run;
  const ResolvedConfig resolved =
      parse_config(run, kText, "run.yaml",
                   {"train.steps=5", "train.steps = 6", "plan.layers=[1, 2]",
                    "sources.1.weight=0.5", "train.dtype=bf16", "train.seed=null", "model=*.x",
                    "bandwidth=1GB/s", "labels.more=yes", "extra.b.c=1"});
  EXPECT_EQ(run.train.steps, 6);
  EXPECT_EQ(run.plan.layers, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(run.sources[1].weight, 0.5);
  EXPECT_EQ(run.train.dtype, "bf16");
  EXPECT_EQ(run.train.seed, std::nullopt);
  EXPECT_EQ(run.model, "*.x");
  EXPECT_EQ(run.bandwidth, 1e9);
  EXPECT_EQ(run.labels.at("more"), "yes");
  EXPECT_EQ(run.extra["b"]["c"], 1);
  EXPECT_EQ(resolved.origin("train.steps"), "--set");
  EXPECT_EQ(resolved.origin("train.peak_lr"), "run.yaml:5");

  EXPECT_EQ(refused("", {"train.stpes=5"}),
            "[--set train.stpes=5] unknown key 'train.stpes'; expected 'train.steps'");
  EXPECT_EQ(refused("", {"train.steps=x"}),
            "[--set train.steps=x] train.steps is 'x'; expected an integer");
  EXPECT_NE(refused("", {"train.steps"}).find("expected key=value"), std::string::npos);
  EXPECT_NE(refused("", {"train..x=1"}).find("empty name"), std::string::npos);
  EXPECT_NE(refused(kText, {"sources.2.path=x"}).find("sources is a list of 2; got '2'"),
            std::string::npos);
  EXPECT_NE(refused(kText, {"train.steps.x=1"}).find("train.steps is a value (run.yaml:4)"),
            std::string::npos);
}

struct Renamed {
  struct Section {
    int64_t rate = 0;
    void fields(Fields& v) { v("rate", rate, "").formerly("speed"); }
  } link;
  void fields(Fields& v) { v("link", link, "").formerly("wire"); }
};

TEST(Config, FormerNamesAreReadWithANote) {
  test::LogLines notes;
  Renamed config;
  const ResolvedConfig resolved = parse_config(config, "wire: {speed: 3}\n", "run.yaml");
  EXPECT_EQ(config.link.rate, 3);
  EXPECT_EQ(resolved.entries()[0].path, "link.rate");
  EXPECT_NE(notes.text().find("'wire' is now called 'link'"), std::string::npos) << notes.text();
  EXPECT_NE(notes.text().find("'link.speed' is now called 'link.rate'"), std::string::npos)
      << notes.text();
  notes.clear();
  parse_config(config, "link: {rate: 3}\n", "run.yaml", {"wire.speed=4"});
  EXPECT_EQ(config.link.rate, 4);
  EXPECT_NE(notes.text().find("wire.speed is now --set link.rate"), std::string::npos)
      << notes.text();
  notes.clear();
  parse_config(config, "link: {rate: 5}\n", "run.yaml", {"link.rate=6"});
  EXPECT_EQ(notes.text(), "");
  EXPECT_THROW(parse_config(config, "{wire: {rate: 1}, link: {rate: 2}}\n", "run.yaml"), Error);
}

struct Moved {
  struct Section {
    int64_t rate = 0;
    std::string name = "none";
    void fields(Fields& v) {
      v("rate", rate, "").formerly("wire.speed");
      v("name", name, "").formerly("wire.link");
    }
  } link;
  struct Wire {
    int64_t length = 0;
    void fields(Fields& v) { v("length", length, ""); }
  } wire;
  void fields(Fields& v) {
    v("wire", wire, "");
    v("link", link, "");
  }
};

TEST(Config, KeysThatMovedAreReadAtTheirFormerPlace) {
  test::LogLines notes;
  Moved config;
  const ResolvedConfig resolved =
      parse_config(config, "wire:\n  speed: 3\n  length: 4\n  link: a\n", "run.yaml");
  EXPECT_EQ(config.link.rate, 3);
  EXPECT_EQ(config.link.name, "a");
  EXPECT_EQ(config.wire.length, 4);
  EXPECT_EQ(resolved.origin("link.rate"), "run.yaml:2");
  EXPECT_NE(notes.text().find("'wire.speed' is now called 'link.rate'"), std::string::npos)
      << notes.text();
  notes.clear();
  parse_config(config, "{wire: {speed: 3}}\n", "run.yaml", {"wire.speed=5", "link.name=b"});
  EXPECT_EQ(config.link.rate, 5);
  EXPECT_EQ(config.link.name, "b");
  EXPECT_NE(notes.text().find("wire.speed is now --set link.rate"), std::string::npos)
      << notes.text();
  notes.clear();
  parse_config(config, "link: {rate: 6}\nwire:\n", "run.yaml");
  EXPECT_EQ(notes.text(), "");
  EXPECT_THROW(parse_config(config, "{wire: {speed: 1}, link: {rate: 2}}\n", "run.yaml"), Error);
  EXPECT_THROW(parse_config(config, "{wire: {speed: 1}, link: fast}\n", "run.yaml"), Error);
}

/// A quantity is the same scalar to YAML with quotes and without, as in a file written as JSON.
TEST(Config, QuantitiesMayBeQuoted) {
  for (const char* text : {"bandwidth: 400Gbit/s\n", "bandwidth: \"400Gbit/s\"\n",
                           "bandwidth: '400Gbit/s'\n", "bandwidth: !!str 400Gbit/s\n",
                           "{\"bandwidth\": \"400Gbit/s\"}\n", "bandwidth: \"50000000000\"\n"}) {
    RunConfig run;
    run.bandwidth = 0;
    EXPECT_NO_THROW(parse_config(run, text, "run.yaml")) << text;
    EXPECT_EQ(run.bandwidth, 50e9) << text;
  }
  EXPECT_EQ(refused("bandwidth: \"fast\"\n"), refused("bandwidth: fast\n"));
}

/// A section's own keys come first, then equal keys of another section. Keys deeper in that one
/// mean another thing and are not suggested.
TEST(Config, TheNearestKeyIsOfTheSection) {
  struct Shard {
    int64_t optimizer = 0, level = 0;
    void fields(Fields& v) {
      v("optimizer", optimizer, "");
      v("level", level, "");
    }
  };
  struct Plan {
    Shard shard;
    int64_t pp = 1, steps = 0;
    void fields(Fields& v) {
      v("shard", shard, "");
      v("pp", pp, "");
      v("steps", steps, "");
    }
  };
  struct Train {
    int64_t step = 1, rate = 1;
    void fields(Fields& v) {
      v("step", step, "");
      v("rate", rate, "");
    }
  };
  struct Root {
    Plan plan;
    Train train;
    void fields(Fields& v) {
      v("plan", plan, "");
      v("train", train, "");
    }
  };
  const auto expected = [](const char* assignment) -> std::string {
    Root root;
    try {
      parse_config(root, "", "run.yaml", {assignment});
    } catch (const Error& error) {
      const std::string text = error.what();
      return text.substr(text.find("expected"));
    }
    return "";
  };
  EXPECT_EQ(expected("train.optimizer=1"), "expected one of step, rate");
  EXPECT_EQ(expected("train.steps=1"), "expected 'train.step'");
  EXPECT_EQ(expected("train.pp=1"), "expected 'plan.pp'");
  EXPECT_EQ(expected("plan.optimizer=1"), "expected 'plan.shard.optimizer'");
  EXPECT_EQ(expected("optimizer=1"), "expected 'plan.shard.optimizer'");
}

TEST(Config, RefusalsNameThePlaceAndTheNearestKey) {
  EXPECT_EQ(refused("train:\n  stpes: 5\n"),
            "[run.yaml:2] unknown key 'train.stpes'; expected 'train.steps'");
  EXPECT_EQ(refused("trian: {}\n"), "[run.yaml:1] unknown key 'trian'; expected 'train'");
  EXPECT_EQ(refused("train:\n  pp: 2\n"),
            "[run.yaml:2] unknown key 'train.pp'; expected 'plan.pp'");
  EXPECT_EQ(refused("plan:\n  colour: red\n"),
            "[run.yaml:2] unknown key 'plan.colour'; expected one of pp, layers, passes");
  EXPECT_EQ(refused("train:\n  steps: fast\n"),
            "[run.yaml:2] train.steps is 'fast'; expected an integer");
  EXPECT_EQ(refused("train:\n  steps: 1.5\n"),
            "[run.yaml:2] train.steps is '1.5'; expected an integer");
  EXPECT_EQ(refused("train:\n  steps: \"5\"\n"),
            "[run.yaml:2] train.steps is '5'; expected an integer, without quotes");
  EXPECT_EQ(refused("train:\n  steps: !!str 5\n"),
            "[run.yaml:2] train.steps is '5'; expected an integer, without quotes");
  EXPECT_EQ(refused("train:\n  tie: \"true\"\n"),
            "[run.yaml:2] train.tie is 'true'; expected true or false, without quotes");
  for (const char* whole : {"1e3", "1000.0", "1E+3"}) {
    EXPECT_EQ(
        refused(std::string("train:\n  steps: ") + whole + "\n"),
        fmt::format("[run.yaml:2] train.steps is '{}'; expected an integer; did you mean 1000?",
                    whole));
  }
  EXPECT_EQ(refused("train:\n  steps: 0\n"),
            "[run.yaml:2] train.steps is '0'; expected at least 1");
  EXPECT_EQ(refused("train:\n  peak_lr: 2\n"),
            "[run.yaml:2] train.peak_lr is '2'; expected from 0 to 1");
  EXPECT_EQ(refused("train:\n  steps:\n"), "[run.yaml:2] train.steps is null; expected an integer");
  EXPECT_EQ(refused("train:\n  tie: yes\n"),
            "[run.yaml:2] train.tie is 'yes'; expected true or false");
  EXPECT_EQ(refused("train:\n  dtype: f23\n"),
            "[run.yaml:2] train.dtype is 'f23'; expected one of f32, f64, bf16; try 'f32'");
  EXPECT_EQ(refused("train: 5\n"), "[run.yaml:1] train is '5'; expected a section with keys");
  EXPECT_EQ(refused("model: [a]\n"), "[run.yaml:1] model is a list; expected a string");
  EXPECT_EQ(refused("plan:\n  layers:\n    - 1\n    - x\n"),
            "[run.yaml:4] plan.layers[1] is 'x'; expected an integer");
  EXPECT_EQ(refused("sources:\n  - weight: 1\n"),
            "[run.yaml:2] key 'sources.0.path' is missing; expected a string (glob of files)");
  EXPECT_EQ(refused("sources: {path: x}\n"),
            "[run.yaml:1] sources is a section; expected a list of sections");
  EXPECT_NE(refused("bandwidth: 80GiB\n").find("[run.yaml:1] bandwidth is '80GiB'; expected bytes"),
            std::string::npos);
  EXPECT_EQ(refused("model: a\nmodel: b\n"),
            "[run.yaml:2] key 'model' is given twice; the first is at run.yaml:1");
  EXPECT_NE(refused("a: [1\n").find("[run.yaml:"), std::string::npos);
  EXPECT_NE(refused("a: [1\n").find("not valid YAML"), std::string::npos);
  EXPECT_NE(refused("a: 1\n---\nb: 2\n").find("run.yaml:2] more text after the end"),
            std::string::npos);
  // yaml-cpp's LoadAll never returns on these.
  for (const char* text : {"[1],2]\n", "{a: 1}, b\n", ","}) {
    EXPECT_NE(refused(text).find("run.yaml:1] more text after the end"), std::string::npos) << text;
  }
  EXPECT_NE(refused("train: {}\n", {"plan.passes=[\"a\"],"}).find("more text after the end"),
            std::string::npos);
  EXPECT_NE(refused("- 1\n").find("expected keys with values"), std::string::npos);
  EXPECT_NE(refused("model: \xff\n").find("UTF-8"), std::string::npos);
}

struct Choices {
  struct Kind {
    std::string name = "a";
    void fields(Fields& v) {
      v("name", name, "which").one_of({"a", "b"}).refuse("old", "old is gone; expected a");
      v.refuse("colour", "colours are gone; expected name");
    }
  };
  Kind kind;
  std::vector<std::string> names;
  void fields(Fields& v) {
    v("kind", kind, "kind").refuse("old", "old is gone; expected a section");
    v("names", names, "several").one_of({"abc", "xyz"});
  }
};

/// Text of the error of an assignment to Choices; empty: none.
std::string refused_choice(const std::string& assignment) {
  Choices choices;
  try {
    parse_config(choices, "{}", "f", {assignment});
  } catch (const Error& error) {
    return std::string(error.text());
  }
  return "";
}

TEST(Config, RefusesSomeKeysAndValuesWithAReasonOfTheirOwn) {
  EXPECT_EQ(refused_choice("kind.name=old"), "kind.name is 'old': old is gone; expected a");
  EXPECT_EQ(refused_choice("kind.name=c"), "kind.name is 'c'; expected one of a, b");
  EXPECT_EQ(refused_choice("kind=old"), "kind is 'old': old is gone; expected a section");
  EXPECT_EQ(refused_choice("kind.colour=red"),
            "unknown key 'kind.colour': colours are gone; expected name");
  // A key that asks for nothing is no error, but a text is.
  EXPECT_EQ(refused_choice("kind.colour=false"), "");
  EXPECT_EQ(refused_choice("kind.colour=null"), "");
  EXPECT_NE(refused_choice("kind.colour=\"false\""), "");
  EXPECT_EQ(refused_choice("kind.name=b"), "");
}

TEST(Config, ListsOfChoicesNameThem) {
  const std::string expected = "expected one of abc, xyz, or a list of these";
  EXPECT_EQ(refused_choice("names=none"), "names is 'none'; " + expected);
  EXPECT_EQ(refused_choice("names=[xyz, abd]"), "names[1] is 'abd'; " + expected + "; try 'abc'");
  EXPECT_EQ(refused_choice("names=abc"), "");
}

struct Sourced {
  double value = 0;
  std::string source;
  void fields(Fields& v) {
    v("value", value, "of a datasheet").unit(Unit::bytes);
    v("source", source, "which");
  }
};
struct Device {
  Sourced memory;
  void fields(Fields& v) { v("memory", memory, "of a device"); }
};

TEST(Config, NamesTheFormOfAConstantWhereOnlyAValueIsGiven) {
  Device device;
  try {
    parse_config(device, "memory: 80GiB\n", "device.yaml");
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "[device.yaml:1] memory is '80GiB'; expected {value: 80GiB, source: ...}");
  }
}

TEST(Config, HostileYamlIsRefused) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int k = 0; k < 10; ++k) {
      bomb += (k ? ", *a" : "*a") + std::to_string(i - 1);
    }
    bomb += "]\n";
  }
  EXPECT_NE(refused(bomb).find("too large"), std::string::npos);
  refused(std::string(20000, '['));
  std::string nested = "a: ";
  for (int i = 0; i < 100; ++i) {
    nested += "[";
  }
  for (int i = 0; i < 100; ++i) {
    nested += "]";
  }
  EXPECT_NE(refused(nested).find("too large"), std::string::npos);
  Rng rng(11);
  for (int i = 0; i < 3000; ++i) {
    std::string text = kText;
    for (int k = 0; k < 3; ++k) {
      text[rng.below(text.size())] = static_cast<char>(rng.below(128));
    }
    RunConfig run;
    try {
      parse_config(run, text, "run.yaml");
    } catch (const Error&) {
    }
  }
}

// Tree walks recurse once per level.
TEST(Config, DepthIsLimited) {
  const auto refused_override = [](const std::string& assignment) -> std::string {
    RunConfig run;
    try {
      parse_config(run, kText, "run.yaml", {assignment});
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  const auto path = [](int names) {
    std::string text = "extra";
    for (int i = 1; i < names; ++i) {
      text += ".z";
    }
    return text;
  };
  EXPECT_EQ(refused_override(path(64) + "=1"), "");
  EXPECT_EQ(refused_override(path(60) + "=[[1]]"), "");
  const std::string many = refused_override(path(60'000) + "=1");
  EXPECT_NE(many.find("60000 names in the path; expected at most 64"), std::string::npos) << many;
  EXPECT_LT(many.size(), 400u);
  EXPECT_NE(refused_override(path(60) + "=[[[[[[[1]]]]]]]").find("64 levels deep"),
            std::string::npos);
  for (const char* open : {"[", "{a: "}) {
    std::string text = "extra: ";
    for (int i = 0; i < 50'000; ++i) {
      text += open;
    }
    EXPECT_NE(refused(text), "");
  }
  EXPECT_NE(refused("train:\n\tsteps: 3\n").find("indented by a tab"), std::string::npos);
}

TEST(Config, PrintedConfigReadsBackToTheSame) {
  RunConfig run;
  run.extra = nullptr;
  const ResolvedConfig first =
      parse_config(run, kText, "run.yaml",
                   {"model=a: b # \"c\"", "train.peak_lr=0.00012345678901234567", "labels.n='true'",
                    "memory=123456789"});
  const std::string text = first.to_yaml(true);
  EXPECT_NE(text.find("  steps: 20"), std::string::npos) << text;
  EXPECT_NE(text.find("# run.yaml:4"), std::string::npos) << text;
  EXPECT_NE(text.find("# --set"), std::string::npos) << text;
  EXPECT_NE(text.find("# default"), std::string::npos) << text;
  EXPECT_NE(text.find("  - path: \"/usr/**\""), std::string::npos) << text;
  RunConfig again;
  const ResolvedConfig second = parse_config(again, text, "printed");
  EXPECT_EQ(second.to_json(), first.to_json());
  EXPECT_EQ(second.to_yaml(), first.to_yaml());
  EXPECT_EQ(again.train.peak_lr, 0.00012345678901234567);
  EXPECT_EQ(again.model, "a: b # \"c\"");
  // JSON is YAML: the stored form reads back too.
  RunConfig third;
  EXPECT_EQ(parse_config(third, first.to_json().dump(), "json").to_json(), first.to_json());
}

TEST(Config, DocumentationListsKeysTypesAndDefaults) {
  RunConfig run;
  Fields fields;
  run.fields(fields);
  const std::string text = document_config(fields);
  EXPECT_NE(text.find("| `train.steps` | an integer, at least 1 | `1000` | optimizer steps |"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("| `sources[].path` | a string | required | glob of files |"),
            std::string::npos)
      << text;
  EXPECT_TRUE(run.sources.empty());
}

TEST(Config, ReadsFiles) {
  RunConfig run;
  try {
    read_config(run, "/nonexistent/run.yaml");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 2);
    EXPECT_NE(std::string(e.what()).find("/nonexistent/run.yaml"), std::string::npos);
  }
}

}  // namespace
}  // namespace hocket
