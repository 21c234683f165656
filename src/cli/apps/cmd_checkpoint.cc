// SPDX-License-Identifier: Apache-2.0
// hocket checkpoint: join, export, import, merge, split-experts, add-tokens
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json_writer.h"
#include "base/text.h"
#include "checkpoint/add_tokens.h"
#include "checkpoint/convert.h"
#include "checkpoint/expert_modules.h"
#include "checkpoint/gguf_model.h"
#include "checkpoint/join.h"
#include "checkpoint/model_files.h"
#include "checkpoint/model_template.h"
#include "checkpoint/resolve.h"
#include "cli/inputs.h"
#include "cli/verbs.h"
#include "data/tokenizer/tokenizer.h"
#include "gguf/file.h"
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
              "folder of the whole checkpoint, which must not exist yet");
  args.flag("--json", &options->json, "print the result as JSON");
  args.example("hocket checkpoint join DIR-A DIR-B --out runs/x/checkpoints/step-000100",
               "of two hosts; training under runs/x then goes on from it");
  args.example("hocket checkpoint join DIR-* --out step-000100 --json", "of many");
  args.run([options] { return join_folders(*options); });
}

struct ConvertOptions {
  std::string model, out, tokenizer, type;
  std::string adapter;  ///< to be merged into `model`
  bool json = false;
};

/// A model that a command was given, with the files beside its weights.
struct GivenModel {
  checkpoint::ModelLocation at;
  models::ModelConfig config;
  checkpoint::ModelFiles files;
  std::unique_ptr<checkpoint::ModelWeights> weights;
  std::vector<std::string> notes;  ///< sentences about files that are not the base's
};

/// Gives a model with an adapter the adapter's tokenizer, with its special tokens: the one that it
/// was trained with. What the adapter's folder lacks is the base's.
void take_tokenizer_of_adapter(GivenModel* given) {
  const checkpoint::ModelLocation& at = given->at;
  const std::string base_path = at.folder != at.adapter         ? at.folder
                                : gguf::is_gguf(at.config_file) ? at.config_file
                                                                : parent_path(at.config_file);
  const checkpoint::ModelFiles base = checkpoint::read_model_files(base_path);
  if (at.folder != at.adapter) {
    checkpoint::take_tokenizer(at.adapter, &given->files);
  } else if (!given->files.has(checkpoint::kGenerationFile) &&
             base.has(checkpoint::kGenerationFile)) {
    given->files.texts[checkpoint::kGenerationFile] = base.texts.at(checkpoint::kGenerationFile);
  }
  checkpoint::complete_tokenizer(given->config, &given->files);
  if (!checkpoint::has_chat_template(given->files)) {
    checkpoint::take_chat_template(base, &given->files);
  }
  given->notes = checkpoint::take_special_tokens(base, &given->config, &given->files);
  const auto text = base.texts.find(checkpoint::kTokenizerFile);
  const bool is_same =
      text != base.texts.end() && text->second == given->files.texts.at(checkpoint::kTokenizerFile);
  if (!is_same || !given->notes.empty()) {
    given->notes.insert(given->notes.begin(),
                        fmt::format("the tokenizer is that of the adapter, {}", at.adapter));
  }
}

/// Opens a model that is to be written again. Throws Error for no model, for nothing to write to,
/// and for a tokenizer that nothing here could read.
GivenModel open_model(const char* verb, const ConvertOptions& options) {
  if (options.model.empty()) fail(verb, "no model to read; expected MODEL");
  if (options.out.empty()) fail(verb, "nothing to write to; try --out PATH");
  GivenModel given;
  given.at = checkpoint::resolve_model(options.model, checkpoint::Need::intact);
  if (!options.adapter.empty()) {
    given.at = checkpoint::with_adapter(given.at, options.adapter);
  }
  require_output(verb, options.out, {given.at.folder, options.tokenizer});
  require_writable(verb, options.out);
  given.config = checkpoint::read_model_config(given.at.config_file);
  given.files = checkpoint::read_model_files(given.at.folder);
  if (!options.tokenizer.empty()) {
    checkpoint::take_tokenizer(options.tokenizer, &given.files);
  } else if (!given.at.adapter.empty() &&
             file_exists(join_path(given.at.adapter, checkpoint::kTokenizerFile))) {
    take_tokenizer_of_adapter(&given);
  }
  if (!given.files.has(checkpoint::kTokenizerFile)) {
    fail(verb, "{} has no tokenizer.json; try --tokenizer FILE", given.at.folder);
  }
  checkpoint::complete_tokenizer(given.config, &given.files);
  // A tokenizer that is named comes with its own chat template.
  if (options.tokenizer.empty()) {
    checkpoint::complete_template(given.at.folder, &given.files);
    if (!given.at.adapter.empty() && given.at.adapter != given.at.folder) {
      checkpoint::take_chat_template(checkpoint::read_model_files(given.at.adapter), &given.files);
    }
  }
  data::Tokenizer::parse(given.files.texts.at(checkpoint::kTokenizerFile), given.at.folder);
  given.weights =
      std::make_unique<checkpoint::ModelWeights>(given.at.folder, given.config, given.at.adapter);
  return given;
}

/// Prints a model that was written, and a line for each sentence of `notes`.
void print_written(const ConvertOptions& options, const checkpoint::Written& written,
                   const std::vector<std::string>& notes) {
  if (options.json) {
    JsonWriter json;
    json.object()
        .member("out", options.out)
        .member("type", written.types())
        .member("bytes", written.bytes)
        .member("notes", notes)
        .end();
    fmt::print("{}\n", json.take());
    return;
  }
  fmt::print("{}: {} as {}\n", options.out, human_bytes(static_cast<double>(written.bytes)),
             written.types());
  for (const std::string& note : notes) {
    fmt::print("  {}\n", note);
  }
}

/// A sentence about the files of a folder that have no place beside a model's weights.
void add_left(const checkpoint::ModelFiles& files, std::vector<std::string>* notes) {
  if (!files.left.empty()) {
    notes->push_back("not copied: " + join(files.left, ", "));
  }
}

/// A sentence about quantised weights that become plain numbers.
void add_decoded(const GivenModel& given, const std::string& type,
                 std::vector<std::string>* notes) {
  if (!type.empty() || !gguf::is_gguf(given.at.folder)) return;
  std::map<std::string, int64_t> quantised;
  const gguf::File file(given.at.folder);
  for (const gguf::StoredTensor& tensor : file.tensors()) {
    const gguf::BlockFormat& format = gguf::format_of(tensor.type);
    if (format.elements > 1) {
      ++quantised[format.name];
    }
  }
  for (const auto& [name, count] : quantised) {
    notes->push_back(fmt::format("{} of {} became f32, the numbers that they stand for",
                                 counted(count, "tensor"), name));
  }
}

/// Returns the type that a name of --type stands for; nothing for "".
std::optional<gguf::ElementType> written_type(const std::string& name) {
  if (name.empty()) return {};
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

/// The same of a folder.
std::optional<graph::DType> folder_type(const char* verb, const std::string& name) {
  if (name.empty()) return {};
  if (name != "f32" && name != "f16" && name != "bf16") {
    fail(verb, "--type is {}; expected f32, f16 or bf16", quote(name));
  }
  return graph::parse_dtype(name);
}

int export_model(const ConvertOptions& options) {
  const std::optional<gguf::ElementType> type = written_type(options.type);
  const GivenModel given = open_model("checkpoint export", options);
  const checkpoint::ModelSource source = checkpoint::source_of(*given.weights, given.config);
  gguf::Metadata metadata =
      checkpoint::gguf_metadata(given.config, checkpoint::gguf_type(source, type), given.at.folder);
  std::vector<std::string> notes = given.notes;
  add_decoded(given, options.type, &notes);
  for (const std::string& lost :
       checkpoint::add_gguf_files(given.files, given.config, given.at.folder, &metadata)) {
    notes.push_back("GGUF has no place for " + lost);
  }
  add_left(given.files, &notes);
  print_written(options, checkpoint::export_gguf(source, type, metadata, options.out), notes);
  return 0;
}

int import_model(const ConvertOptions& options) {
  const std::optional<graph::DType> type = folder_type("checkpoint import", options.type);
  const GivenModel given = open_model("checkpoint import", options);
  std::vector<std::string> notes = given.notes;
  add_decoded(given, options.type, &notes);
  add_left(given.files, &notes);
  print_written(options,
                checkpoint::export_folder(checkpoint::source_of(*given.weights, given.config), type,
                                          given.files.texts, options.out),
                notes);
  return 0;
}

int merge_adapter(const ConvertOptions& options, const std::string& base) {
  constexpr const char* kVerb = "checkpoint merge";
  const std::optional<graph::DType> type = folder_type(kVerb, options.type);
  ConvertOptions merged = options;
  if (!base.empty()) {
    merged.adapter = options.model;
    merged.model = base;
  }
  const GivenModel given = open_model(kVerb, merged);
  if (given.at.adapter.empty()) {
    fail(kVerb, "{} is a model; expected an adapter's folder, or a run that trained one",
         options.model);
  }
  std::vector<std::string> notes = given.notes;
  add_decoded(given, options.type, &notes);
  print_written(options,
                checkpoint::export_folder(checkpoint::source_of(*given.weights, given.config), type,
                                          given.files.texts, options.out),
                notes);
  return 0;
}

int split_experts(const ConvertOptions& options, const std::string& base) {
  constexpr const char* kVerb = "checkpoint split-experts";
  if (options.model.empty()) fail(kVerb, "no adapter to read; expected ADAPTER");
  if (options.out.empty()) fail(kVerb, "nothing to write to; try --out PATH");
  const checkpoint::ModelLocation at =
      base.empty() ? checkpoint::resolve_model(options.model, checkpoint::Need::config)
                   : checkpoint::with_adapter(
                         checkpoint::resolve_model(base, checkpoint::Need::config), options.model);
  if (at.adapter.empty()) {
    fail(kVerb, "{} is a model; expected an adapter's folder, or a run that trained one",
         options.model);
  }
  require_output(kVerb, options.out, {at.adapter});
  require_writable(kVerb, options.out);
  const models::ModelConfig config = checkpoint::read_model_config(at.config_file);
  const checkpoint::AdapterWeights adapter(at.adapter, config);
  const int64_t tensors = checkpoint::save_expert_modules(
      adapter, config, base.empty() ? checkpoint::base_of(at.adapter) : base, options.out);
  fmt::print("{}: {}\n", options.out, counted(tensors, "tensor"));
  return 0;
}

struct TokenOptions {
  ConvertOptions convert;
  checkpoint::TokenAdditions additions;
  std::string chat_template;  ///< a file
};

int add_tokens(TokenOptions& options) {
  constexpr const char* kVerb = "checkpoint add-tokens";
  const std::optional<graph::DType> type = folder_type(kVerb, options.convert.type);
  GivenModel given = open_model(kVerb, options.convert);
  checkpoint::TokenAdditions& wanted = options.additions;
  if (!options.chat_template.empty()) {
    constexpr int64_t kMaxTemplateBytes = int64_t{16} << 20;
    wanted.chat_template = read_file(options.chat_template, kMaxTemplateBytes);
  }
  const bool purposes = !wanted.bos.empty() || !wanted.eos.empty() || !wanted.pad.empty();
  if (wanted.special.empty() && wanted.words.empty() && wanted.chat_template.empty() && !purposes &&
      wanted.pad_to_multiple_of == 1) {
    fail(kVerb, "nothing to add; try --token TEXT or --chat-template FILE");
  }
  const checkpoint::ExtendedModel made =
      checkpoint::add_tokens(*given.weights, given.config, std::move(given.files), wanted);
  const checkpoint::Written written =
      checkpoint::export_folder(made.source, type, made.files.texts, options.convert.out);
  const int64_t rows = made.source.config.vocab_size;
  std::vector<std::string> notes = given.notes;
  notes.insert(notes.end(), made.notes.begin(), made.notes.end());
  add_decoded(given, options.convert.type, &notes);
  add_left(made.files, &notes);
  if (options.convert.json) {
    JsonWriter json;
    json.object().member("out", options.convert.out).member("rows_before", made.rows_before);
    json.member("rows", rows).key("tokens").object();
    for (const auto& [text, id] : made.added) {
      json.member(text, id);
    }
    json.end().member("type", written.types()).member("bytes", written.bytes);
    fmt::print("{}\n", json.member("notes", notes).end().take());
    return 0;
  }
  for (const auto& [text, id] : made.added) {
    fmt::print("{} is token {}\n", quote(text), id);
  }
  fmt::print("vocab_size: {}\n", rows == made.rows_before
                                     ? fmt::format("{}, as before", rows)
                                     : fmt::format("{} -> {}", made.rows_before, rows));
  print_written(options.convert, written, notes);
  return 0;
}

constexpr const char* kModelText =
    "a Hugging Face folder, a GGUF file, a checkpoint or run folder of ours, or a hub id in the "
    "local cache";

void declare_export(Args& args) {
  auto options = std::make_shared<ConvertOptions>();
  args.about("a model as a GGUF file, for llama.cpp and others",
             "Matrices keep the type in which they came in, or are stored as --type; vectors and "
             "routers are f32. Tokenizer, special tokens, chat templates, stop tokens, sampling "
             "defaults and license go along, and a line says what has no place in GGUF. The file "
             "is opened again and compared with the model before it gets its name; a model that "
             "GGUF cannot say is refused.");
  args.positional("MODEL", &options->model, kModelText);
  args.option("--out", "FILE", &options->out, "GGUF file to write");
  args.option(
      "--type", "TYPE", &options->type,
      "type of matrices: f32, f16, bf16 or q8_0; default: as they are, f32 for quantised ones");
  add_tokenizer(args, &options->tokenizer);
  args.flag("--json", &options->json, "print the result as JSON");
  args.example("hocket checkpoint export runs/quickstart --out quickstart.gguf",
               "the quickstart's model, without loss");
  args.example("hocket checkpoint export MODEL --out FILE.gguf --type q8_0",
               "a quarter of the size of f32");
  args.run([options] { return export_model(*options); });
}

void declare_import(Args& args) {
  auto options = std::make_shared<ConvertOptions>();
  args.about("a GGUF file, or any other model, as a Hugging Face folder",
             "Writes config.json, model.safetensors, and what stood beside the weights: tokenizer, "
             "chat template, special tokens, generation_config.json, license. transformers opens "
             "the folder, and every command here. Weights keep the type in which they came in; "
             "quantised ones become the numbers that they stand for.");
  args.positional("MODEL", &options->model, kModelText);
  args.option("--out", "DIR", &options->out, "folder to write");
  args.option("--type", "TYPE", &options->type,
              "type of weights: f32, f16 or bf16; default: as they are, f32 for quantised ones");
  add_tokenizer(args, &options->tokenizer);
  args.flag("--json", &options->json, "print the result as JSON");
  args.example("hocket checkpoint import MODEL.gguf --out DIR", "the very numbers of the file");
  args.example("hocket checkpoint import runs/quickstart --out quickstart-hf --type bf16",
               "the newest checkpoint of a run, without what only training needs");
  args.run([options] { return import_model(*options); });
}

void declare_merge(Args& args) {
  auto options = std::make_shared<ConvertOptions>();
  auto base = std::make_shared<std::string>();
  args.about("an adapter merged into its base, as a Hugging Face folder",
             "Weights with an adapter become W + scale B A, computed in f64 and rounded once to "
             "the base's type; modules that the adapter has in full replace the base's. Files "
             "beside the weights are the adapter's, if it has a tokenizer, else the base's; ids of "
             "special tokens in config.json and generation_config.json follow. transformers, vLLM "
             "and every command here open the folder.");
  args.positional("ADAPTER", &options->model,
                  "a PEFT adapter's folder, or a run of ours that trained one");
  args.option("--base", "MODEL", base.get(),
              "base model; default: the one that adapter_config.json names");
  args.option("--out", "DIR", &options->out, "folder to write");
  args.option("--type", "TYPE", &options->type,
              "type of weights: f32, f16 or bf16; default: that of the base");
  add_tokenizer(args, &options->tokenizer);
  args.flag("--json", &options->json, "print the result as JSON");
  args.example("hocket checkpoint merge DIR --out merged",
               "the newest adapter of a run, or an adapter from elsewhere");
  args.example("hocket checkpoint merge DIR --base MODEL --out merged --type bf16",
               "one whose base lies elsewhere");
  args.run([options, base] { return merge_adapter(*options, *base); });
}

void declare_split_experts(Args& args) {
  auto options = std::make_shared<ConvertOptions>();
  auto base = std::make_shared<std::string>();
  args.about("an adapter of experts with tensors of each expert",
             "Writes an adapter's folder in which each projection of an expert has an A and a B of "
             "its own (experts.3.up_proj.lora_A.weight), as vLLM and PEFT with transformers 4 read "
             "them. The products are the same, bit for bit.");
  args.positional("ADAPTER", &options->model,
                  "a PEFT adapter's folder, or a run of ours that trained one");
  args.option("--base", "MODEL", base.get(),
              "base model; default: the one that adapter_config.json names");
  args.option("--out", "DIR", &options->out, "folder to write");
  args.example("hocket checkpoint split-experts DIR --out split",
               "the newest adapter of a run, for another engine");
  args.example("hocket checkpoint split-experts DIR --base MODEL --out split",
               "one whose base lies elsewhere");
  args.run([options, base] { return split_experts(*options, *base); });
}

void declare_add_tokens(Args& args) {
  auto options = std::make_shared<TokenOptions>();
  ConvertOptions& convert = options->convert;
  checkpoint::TokenAdditions& additions = options->additions;
  args.about("a model with more tokens, or with a chat template",
             "Writes a Hugging Face folder. Tokens get the next ids: rows that the embedding has "
             "beyond the tokenizer, then new ones, of an untied output head too; rows of old "
             "tokens stay. It is what add_special_tokens, add_tokens and "
             "resize_token_embeddings do in transformers.");
  args.positional("MODEL", &convert.model, kModelText);
  args.option("--out", "DIR", &convert.out, "folder to write");
  args.option("--token", "TEXT", &additions.special,
              "special token to add, such as <|im_start|>; repeatable");
  args.option("--word", "TEXT", &additions.words,
              "ordinary token to add, as by add_tokens; repeatable");
  args.option("--chat-template", "FILE", &options->chat_template,
              "file with a Jinja template, which replaces the model's");
  args.option("--bos-token", "TEXT", &additions.bos,
              "token that begins a text, in all files; added where it is no token");
  args.option("--eos-token", "TEXT", &additions.eos,
              "token that ends a text, likewise; ends that generation_config.json names stay");
  args.option("--pad-token", "TEXT", &additions.pad, "padding token, likewise");
  args.option("--init", "SOURCE", &additions.init,
              "values of new rows: mean, of the rows of all tokens; text:TEXT, the mean of the "
              "rows of a text's tokens; or a .safetensors file with a row for each token, in "
              "model.embed_tokens.weight and lm_head.weight");
  constexpr int64_t kMaxMultiple = int64_t{1} << 20;
  args.option("--pad-to-multiple-of", "N", &additions.pad_to_multiple_of,
              "round the number of rows up to a multiple of N", 1, kMaxMultiple);
  args.option("--type", "TYPE", &convert.type,
              "type of weights: f32, f16 or bf16; default: as they are, f32 for quantised ones");
  add_tokenizer(args, &convert.tokenizer);
  args.flag("--json", &convert.json, "print the result as JSON");
  args.example(
      "hocket checkpoint add-tokens MODEL --token '<|im_start|>' --eos-token '<|im_end|>' "
      "--chat-template FILE --out DIR",
      "a base model made ready for chats");
  args.example(
      "hocket checkpoint add-tokens runs/quickstart --word concept_map "
      "--pad-to-multiple-of 64 --out quickstart-more",
      "one token, and an embedding of a size that more plans can cut");
  args.run([options] { return add_tokens(*options); });
}

}  // namespace

void verb_checkpoint(Args& args) {
  args.about("join parts of hosts, convert from and to GGUF, merge adapters, add tokens", "");
  declare_join(args.sub("join"));
  declare_export(args.sub("export"));
  declare_import(args.sub("import"));
  declare_merge(args.sub("merge"));
  declare_split_experts(args.sub("split-experts"));
  declare_add_tokens(args.sub("add-tokens"));
  args.example("hocket checkpoint join DIR-A DIR-B --out step-000100",
               "the parts that two hosts saved of one step, as one folder");
  args.example("hocket checkpoint join --help", "the checkpoints that can be joined");
  args.example("hocket checkpoint export MODEL --out FILE.gguf", "for llama.cpp");
}

}  // namespace hocket::cli
