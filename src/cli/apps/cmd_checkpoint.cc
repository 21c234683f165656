// SPDX-License-Identifier: Apache-2.0
// hocket checkpoint: join, export, import
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/text.h"
#include "checkpoint/convert.h"
#include "checkpoint/gguf_model.h"
#include "checkpoint/join.h"
#include "checkpoint/resolve.h"
#include "cli/inputs.h"
#include "cli/verbs.h"
#include "data/tokenizer/gguf.h"
#include "data/tokenizer/tokenizer.h"
#include "graph/dtype.h"

namespace hocket::cli {

namespace {

struct CheckpointOptions {
  std::vector<std::string> folders;
  std::string out;
  bool json = false;
};

int join_folders(const CheckpointOptions& options) {
  if (options.out.empty()) {
    fail("checkpoint join", "no folder to write to; try --out DIR");
  }
  const checkpoint::Joined joined = checkpoint::join_checkpoint(options.folders, options.out);
  if (options.json) {
    JsonWriter json;
    json.object()
        .member("out", options.out)
        .member("step", joined.step)
        .member("bytes", joined.bytes)
        .member("hosts", joined.hosts)
        .member("given", static_cast<int64_t>(joined.given_hosts.size()))
        .end();
    fmt::print("{}\n", json.take());
    return 0;
  }
  fmt::print("{}: step {}, {} of tensors, from {} of {}\n", options.out, joined.step,
             human_bytes(static_cast<double>(joined.bytes)),
             counted(static_cast<int64_t>(joined.given_hosts.size()), "folder"),
             counted(joined.hosts, "host"));
  return 0;
}

void declare_join(Args& args) {
  auto options = std::make_shared<CheckpointOptions>();
  args.about("one whole checkpoint from the parts of several hosts",
             "Every DIR is one host's part of the same checkpoint, copied here. All are "
             "compared with their checksums first; files of several hosts are copied once. "
             "Refuses parts of different steps or saves, and names the host and the rank "
             "whose part is missing. The result opens in transformers, eval and generate, and "
             "any plan goes on from it.");
  args.positional("DIR", &options->folders, "a host's folder of the checkpoint");
  args.option("--out", "DIR", &options->out,
              "the whole checkpoint: a folder that is not there yet");
  args.flag("--json", &options->json, "the result as JSON");
  args.example("hocket checkpoint join DIR-A DIR-B --out runs/x/checkpoints/step-000100",
               "of two hosts; training under runs/x then goes on from it");
  args.example("hocket checkpoint join DIR-* --out step-000100 --json", "of many");
  args.run([options] { return join_folders(*options); });
}

struct ConvertOptions {
  std::string model, out, tokenizer, type;
  bool json = false;
};

/// Tokenizer of a model as files: texts by name, those of a Hugging Face folder.
using TokenizerFiles = std::map<std::string, std::string>;

/// Returns the files of the tokenizer that is `named`, or that of the model. Error: there is none.
TokenizerFiles tokenizer_of(const checkpoint::ModelLocation& at, const std::string& named,
                            const models::ModelConfig& config, const char* verb) {
  const std::string from = named.empty() ? at.folder : named;
  if (gguf::is_gguf(from)) {
    const data::GgufTokenizer in_file = data::read_gguf_tokenizer(gguf::File(from).metadata());
    TokenizerFiles files = {{"tokenizer.json", in_file.json},
                            {"tokenizer_config.json", in_file.config}};
    if (!in_file.chat_template.empty()) {
      files["chat_template.jinja"] = in_file.chat_template;
    }
    return files;
  }
  const std::string file = is_directory(from) ? join_path(from, "tokenizer.json") : from;
  if (!file_exists(file)) fail(verb, "{} is not there; try --tokenizer FILE", file);
  return checkpoint::tokenizer_files(file, config);
}

/// Returns the chat template of a tokenizer's files: a file of its own comes first. Error: several,
/// of which none is the default.
std::string chat_template_of(const TokenizerFiles& files, const std::string& where) {
  if (files.contains("chat_template.jinja")) return files.at("chat_template.jinja");
  const nlohmann::json json = parse_json(files.at("tokenizer_config.json"), where);
  const JsonView config(json, where);
  if (!config.has("chat_template")) return "";
  const JsonView found = config.at("chat_template");
  if (!found.is_array()) return found.as_string();
  for (size_t i = 0; i < found.size(); ++i) {
    if (found.at(i).get_string("name") == "default") return found.at(i).get_string("template");
  }
  found.fail("has no template named default; expected one");
}

void tell_converted(const ConvertOptions& options, const std::string& type, int64_t bytes) {
  if (options.json) {
    JsonWriter json;
    json.object().member("out", options.out).member("type", type).member("bytes", bytes).end();
    fmt::print("{}\n", json.take());
    return;
  }
  fmt::print("{}: {} as {}\n", options.out, human_bytes(static_cast<double>(bytes)), type);
}

/// Returns the type that a name of --type stands for.
gguf::ElementType written_type(const std::string& name) {
  for (const gguf::ElementType type : {gguf::ElementType::f32, gguf::ElementType::f16,
                                       gguf::ElementType::bf16, gguf::ElementType::q8_0}) {
    std::string known = gguf::format_of(type).name;
    std::transform(known.begin(), known.end(), known.begin(), [](char c) {
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    if (name == known) return type;
  }
  fail("checkpoint export", "--type is {}; expected f32, f16, bf16 or q8_0", quote(name));
}

void require_out(const char* verb, const ConvertOptions& options) {
  if (options.model.empty()) fail(verb, "no model to read; expected MODEL");
  if (options.out.empty()) fail(verb, "nothing to write to; try --out PATH");
}

int export_model(const ConvertOptions& options) {
  const gguf::ElementType type = written_type(options.type);
  require_out("checkpoint export", options);
  const checkpoint::ModelLocation at =
      checkpoint::resolve_model(options.model, checkpoint::Need::intact);
  require_output("checkpoint export", options.out, {at.folder, options.tokenizer});
  require_writable("checkpoint export", options.out);
  const models::ModelConfig config = checkpoint::read_model_config(at.config_file);
  const TokenizerFiles files = tokenizer_of(at, options.tokenizer, config, "checkpoint export");
  gguf::Metadata metadata = checkpoint::gguf_metadata(config, type, at.folder);
  data::add_gguf_tokenizer(files.at("tokenizer.json"), files.at("tokenizer_config.json"),
                           chat_template_of(files, at.folder), config.vocab_size,
                           at.folder + ": tokenizer", &metadata);
  const checkpoint::ModelWeights weights(at.folder, config);
  tell_converted(options, options.type,
                 checkpoint::export_gguf(weights, config, type, metadata, options.out));
  return 0;
}

int import_model(const ConvertOptions& options) {
  if (options.type != "f32" && options.type != "f16" && options.type != "bf16") {
    fail("checkpoint import", "--type is {}; expected f32, f16 or bf16", quote(options.type));
  }
  require_out("checkpoint import", options);
  const checkpoint::ModelLocation at =
      checkpoint::resolve_model(options.model, checkpoint::Need::intact);
  const models::ModelConfig config = checkpoint::read_model_config(at.config_file);
  const TokenizerFiles files = tokenizer_of(at, options.tokenizer, config, "checkpoint import");
  // Refuses a tokenizer that nothing here could read again.
  data::Tokenizer::parse(files.at("tokenizer.json"), at.folder);
  const checkpoint::ModelWeights weights(at.folder, config);
  tell_converted(options, options.type,
                 checkpoint::export_folder(weights, config, graph::parse_dtype(options.type), files,
                                           options.out));
  return 0;
}

constexpr const char* kModelText =
    "a Hugging Face folder, a GGUF file, a checkpoint or run folder of ours, or a hub id in the "
    "local cache";
constexpr const char* kTokenizerText = "tokenizer.json or its folder; default: that of the model";

void declare_export(Args& args) {
  auto options = std::make_shared<ConvertOptions>();
  options->type = "f16";
  args.about("a model as a GGUF file, for llama.cpp and others",
             "Matrices are stored as --type, vectors and routers as f32. Tokenizer, special tokens "
             "and chat template go along. The file is opened again and compared with the model "
             "before it gets its name; whatever GGUF cannot say is refused.");
  args.positional("MODEL", &options->model, kModelText);
  args.option("--out", "FILE", &options->out, "the .gguf to write");
  args.option("--type", "TYPE", &options->type, "of matrices: f32, f16, bf16 or q8_0");
  args.option("--tokenizer", "FILE", &options->tokenizer, kTokenizerText);
  args.flag("--json", &options->json, "the result as JSON");
  args.example("hocket checkpoint export MODEL --out FILE.gguf --type f32", "without loss");
  args.example("hocket checkpoint export MODEL --out FILE.gguf --type q8_0",
               "a quarter of the size");
  args.run([options] { return export_model(*options); });
}

void declare_import(Args& args) {
  auto options = std::make_shared<ConvertOptions>();
  options->type = "bf16";
  args.about("a GGUF file as a Hugging Face folder",
             "Writes config.json, model.safetensors, tokenizer and chat template, which "
             "transformers opens, and every command here. MODEL may be any model; quantised "
             "weights become the numbers that they stand for.");
  args.positional("MODEL", &options->model, kModelText);
  args.option("--out", "DIR", &options->out, "the folder to make");
  args.option("--type", "TYPE", &options->type, "of weights: f32, f16 or bf16");
  args.option("--tokenizer", "FILE", &options->tokenizer, kTokenizerText);
  args.flag("--json", &options->json, "the result as JSON");
  args.example("hocket checkpoint import MODEL.gguf --out DIR", "in bf16");
  args.example("hocket checkpoint import MODEL.gguf --out DIR --type f32",
               "the very numbers of quantised weights");
  args.run([options] { return import_model(*options); });
}

}  // namespace

void verb_checkpoint(Args& args) {
  args.about("checkpoint files: join parts of several hosts, export and import GGUF", "");
  declare_join(args.sub("join"));
  declare_export(args.sub("export"));
  declare_import(args.sub("import"));
  args.example("hocket checkpoint join DIR-A DIR-B --out step-000100",
               "the parts that two hosts saved of one step, as one folder");
  args.example("hocket checkpoint join --help", "the checkpoints that can be joined");
  args.example("hocket checkpoint export MODEL --out FILE.gguf", "for llama.cpp");
}

}  // namespace hocket::cli
