// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/resolve.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/adapter.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_files.h"
#include "checkpoint/names.h"
#include "checkpoint/safetensors.h"
#include "gguf/file.h"

namespace hocket::checkpoint {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Returns the folders that may hold models--org--name, in the search order of huggingface_hub.
std::vector<std::string> hub_caches() {
  if (const std::string cache = environment("HF_HUB_CACHE"); !cache.empty()) return {cache};
  std::string home = environment("HF_HOME");
  if (home.empty()) {
    const std::string xdg = environment("XDG_CACHE_HOME");
    home = join_path(xdg.empty() ? join_path(environment("HOME"), ".cache") : xdg, "huggingface");
  }
  return {join_path(home, "hub"), home};
}

/// Returns whether the text is "name" or "org/name" in the hub's alphabet.
bool is_hub_id(const std::string& text) {
  const std::vector<std::string> parts = split(text, '/');
  if (parts.size() > 2 || text.size() > 200) return false;
  return std::all_of(parts.begin(), parts.end(), [](const std::string& part) {
    return !part.empty() && part[0] != '.' && part.find("..") == part.npos &&
           std::all_of(part.begin(), part.end(), [](char c) {
             return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                    c == '-' || c == '_' || c == '.';
           });
  });
}

int64_t modified(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0 ? static_cast<int64_t>(st.st_mtime) : 0;
}

/// Returns the snapshot that refs/main names, otherwise the newest; "" if the cache does not hold
/// the model.
std::string find_snapshot(const std::string& id) {
  std::string folder_name = "models--" + id;
  if (const size_t slash = folder_name.find('/'); slash != std::string::npos) {
    folder_name.replace(slash, 1, "--");
  }
  for (const std::string& cache : hub_caches()) {
    const std::string folder = join_path(cache, folder_name);
    const std::string snapshots = join_path(folder, "snapshots");
    if (!is_directory(snapshots)) continue;
    const std::string ref = join_path(folder, "refs/main");
    if (file_exists(ref)) {
      const std::string hash(trim(read_file(ref, 4096)));
      const std::string path = join_path(snapshots, hash);
      if (is_hub_id(hash) && hash.find('/') == hash.npos &&
          file_exists(join_path(path, kConfigFile))) {
        return path;
      }
    }
    std::string newest;
    for (const std::string& name : list_dir(snapshots)) {
      const std::string path = join_path(snapshots, name);
      if (!file_exists(join_path(path, kConfigFile))) continue;
      if (newest.empty() || modified(path) > modified(newest)) {
        newest = path;
      }
    }
    if (!newest.empty()) return newest;
  }
  return "";
}

ModelLocation find_model(const std::string& model, Need need, comm::Processes& processes);

/// Resolves an adapter's folder to its base. Files beside the weights are the adapter's, if it has
/// a tokenizer.
ModelLocation at_adapter(const std::string& folder, Need need, comm::Processes& processes) {
  const bool is_checkpoint = file_exists(join_path(folder, kRunFile));
  if (is_checkpoint && need != Need::config) {
    verify_checkpoint(folder, need == Need::intact ? Verify::weights : Verify::lengths, processes);
  }
  const std::string base = base_of(folder);
  if (is_adapter(base)) fail(folder, "the base {} is an adapter; expected a model", quote(base));
  const std::string note = fmt::format(
      "it is the base of adapter {}{}; try another copy of it: MODEL --adapter {}", folder,
      step_of(file_name(base)) < 0 ? "" : ", and runs remove older checkpoints (train.keep_last)",
      folder);
  ModelLocation at = with_note(note, [&] { return find_model(base, need, processes); });
  at.adapter = folder;
  at.is_checkpoint = is_checkpoint;
  if (file_exists(join_path(folder, kTokenizerFile))) {
    at.folder = folder;
  }
  return at;
}

ModelLocation at_folder(const std::string& folder) {
  ModelLocation at;
  at.folder = folder;
  at.config_file = join_path(folder, kConfigFile);
  at.is_checkpoint = file_exists(join_path(folder, kRunFile));
  at.has_weights = has_safetensors(folder);
  return at;
}

ModelLocation at_gguf(const std::string& file) {
  ModelLocation at;
  at.folder = at.config_file = file;
  at.has_weights = true;
  return at;
}

/// Returns the GGUF file of a folder. Throws Error if it has none, or several.
std::string only_gguf(const std::string& folder) {
  std::vector<std::string> files;
  for (const std::string& name : list_dir(folder)) {
    if (name.ends_with(".gguf")) {
      files.push_back(name);
    }
  }
  if (files.size() == 1) return join_path(folder, files[0]);
  if (files.size() > 1) {
    fail(folder, "has {} GGUF files, {}; expected one; try {}", files.size(), join(files, ", "),
         join_path(folder, files[0]));
  }
  fail(folder,
       "no config.json, no checkpoint and no GGUF file; expected a Hugging Face folder, a "
       "checkpoint or a run's folder");
}

/// Resolves `model`, tried in this order: a model folder, a run (its newest intact checkpoint), a
/// GGUF file, a config.json, a hub id in the local cache.
ModelLocation find_model(const std::string& model, Need need, comm::Processes& processes) {
  const Verify verify = need == Need::intact ? Verify::weights : Verify::lengths;
  if (is_directory(model)) {
    if (is_adapter(model)) {
      if (has_safetensors(model)) {
        fail(model, "has {} and weights of a whole model, so that it is both; expected one of them",
             kAdapterConfigFile);
      }
      return at_adapter(model, need, processes);
    }
    if (file_exists(join_path(model, kConfigFile))) {
      ModelLocation at = at_folder(model);
      if (at.is_checkpoint && need != Need::config) {
        verify_checkpoint(model, verify, processes);
      }
      return at;
    }
    for (const std::string& run : {model, join_path(model, "checkpoints")}) {
      const auto newest = latest_checkpoint(run, verify, processes);
      if (newest) return find_model(*newest, need, processes);
    }
    return at_gguf(only_gguf(model));
  }
  if (file_exists(model)) {
    if (gguf::is_gguf(model)) return at_gguf(model);
    if (!model.ends_with(".json")) {
      fail(model, "not a model; expected a folder with config.json, a config.json or a GGUF file");
    }
    ModelLocation at = at_folder(parent_path(model));
    at.config_file = model;
    at.has_weights = at.has_weights && file_name(model) == kConfigFile;
    return at;
  }
  if (!is_hub_id(model)) {
    fail(model,
         "no such file or folder; expected a Hugging Face folder, a checkpoint, a "
         "config.json or a hub id");
  }
  const std::string snapshot = find_snapshot(model);
  if (snapshot.empty()) {
    fail(model,
         "neither a folder here nor in the Hugging Face cache; Hocket downloads nothing; try: hf "
         "download {}",
         model);
  }
  return at_folder(snapshot);
}

}  // namespace

ModelLocation with_adapter(ModelLocation at, const std::string& adapter) {
  if (!at.adapter.empty()) {
    fail(adapter, "the model is an adapter itself, {}; expected the base of both", at.adapter);
  }
  std::string folder = adapter;
  if (!is_adapter(folder)) {
    for (const std::string& run : {adapter, join_path(adapter, "checkpoints")}) {
      const auto newest = latest_checkpoint(run, Verify::weights);
      if (newest) {
        folder = *newest;
      }
    }
  }
  if (!is_adapter(folder)) {
    fail(adapter, "has no {}; expected an adapter's folder, or a run that trained one",
         kAdapterConfigFile);
  }
  at.adapter = folder;
  return at;
}

std::string base_folder(const std::string& path) {
  return is_adapter(path) ? resolve_model(base_of(path), Need::weights).folder : path;
}

ModelLocation resolve_model(const std::string& model, Need need, comm::Processes& processes) {
  ModelLocation at = find_model(model, need, processes);
  if (need != Need::config && !at.has_weights) {
    if (file_exists(join_path(at.folder, kHostFile))) {
      fail(at.folder,
           "has only the weights of one host, of a checkpoint saved on several; only its own "
           "training can resume from it; try hocket checkpoint join with the folders of all hosts, "
           "or an output.dir that all hosts share");
    }
    fail(at.folder,
         "no model.safetensors and no model.safetensors.index.json; expected weights in "
         "safetensors form");
  }
  return at;
}

}  // namespace hocket::checkpoint
