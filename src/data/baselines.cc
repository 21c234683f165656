// SPDX-License-Identifier: Apache-2.0
#include "data/baselines.h"

#include <lzma.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/log.h"
#include "data/prepare.h"

namespace hocket::data {
namespace {

constexpr int kTokenBits = 21;

// Counts the output bytes of `xz -9e -T1`. One encoder serves many texts, since liblzma keeps its
// memory between them. A text is begun, added piece by piece, and finished.
class XzEncoder {
 public:
  ~XzEncoder() { lzma_end(&stream_); }
  void begin() {
    expect(lzma_easy_encoder(&stream_, 9 | LZMA_PRESET_EXTREME, LZMA_CHECK_CRC64), LZMA_OK);
  }
  void add(std::string_view text) {
    stream_.next_in = reinterpret_cast<const uint8_t*>(text.data());
    stream_.avail_in = text.size();
    while (stream_.avail_in > 0) {
      expect(step(LZMA_RUN), LZMA_OK);
    }
  }
  // Bytes of the file.
  int64_t finish() {
    lzma_ret rc = LZMA_OK;
    while (rc == LZMA_OK) {
      rc = step(LZMA_FINISH);
    }
    expect(rc, LZMA_STREAM_END);
    return stream_.total_out;
  }
  // Compresses a whole text; returns its bytes.
  int64_t add(const TextPart& part) {
    const std::string text = reader_.read(part);
    add(std::string_view(text));
    return std::ssize(text);
  }

 private:
  lzma_ret step(lzma_action action) {
    uint8_t out[1 << 14];
    stream_.next_out = out;
    stream_.avail_out = sizeof out;
    return lzma_code(&stream_, action);
  }
  static void expect(lzma_ret got, lzma_ret wanted) {
    if (got == wanted) return;
    fail_run("baselines", "liblzma failed with code {} ({})", static_cast<int>(got),
             got == LZMA_MEM_ERROR ? "it needs 700 MB of memory" : "unexpected");
  }

  lzma_stream stream_ = LZMA_STREAM_INIT;
  TextReader reader_;
};

// Least-significant-digit radix sort, 11 bits a pass, only the passes that `bits` asks for.
void radix_sort(std::vector<uint64_t>* keys, int bits) {
  constexpr int kDigit = 11;
  std::vector<uint64_t> other(keys->size());
  for (int shift = 0; shift < bits; shift += kDigit) {
    std::vector<size_t> at(size_t{1} << kDigit, 0);
    for (const uint64_t k : *keys) {
      ++at[k >> shift & (at.size() - 1)];
    }
    size_t sum = 0;
    for (size_t& a : at) {
      const size_t count = a;
      a = sum;
      sum += count;
    }
    for (const uint64_t k : *keys) {
      other[at[k >> shift & (at.size() - 1)]++] = k;
    }
    keys->swap(other);
  }
}

}  // namespace

int64_t xz_size(std::string_view text) {
  XzEncoder encoder;
  encoder.begin();
  encoder.add(text);
  return encoder.finish();
}

BaselineResult xz_each(const std::vector<TextPart>& files,
                       const std::function<void(int64_t)>& progress) {
  XzEncoder encoder;
  BaselineResult result;
  int64_t done = 0;
  for (const TextPart& file : files) {
    encoder.begin();
    result.bytes += encoder.add(file);
    result.bits += 8.0 * encoder.finish();
    if (progress) {
      progress(++done);
    }
  }
  if (result.bytes == 0) fail("baselines", "{} files without a byte", files.size());
  return result;
}

BaselineResult xz_one_piece(const std::vector<TextPart>& files,
                            const std::function<void(int64_t)>& progress) {
  XzEncoder encoder;
  BaselineResult result;
  int64_t done = 0;
  encoder.begin();
  for (const TextPart& file : files) {
    result.bytes += encoder.add(file);
    if (progress) {
      progress(++done);
    }
  }
  result.bits = 8.0 * encoder.finish();
  if (result.bytes == 0) fail("baselines", "{} files without a byte", files.size());
  return result;
}

void Trigram::Order::build(const std::vector<uint64_t>& sorted, int token_bits) {
  const uint64_t mask = (uint64_t{1} << token_bits) - 1;
  for (size_t i = 0; i < sorted.size();) {
    const uint64_t history = sorted[i] >> token_bits;
    History h{history, std::ssize(token), 0, 0};
    while (i < sorted.size() && sorted[i] >> token_bits == history) {
      size_t end = i;
      while (end < sorted.size() && sorted[end] == sorted[i]) {
        ++end;
      }
      token.push_back(sorted[i] & mask);
      count.push_back(end - i);
      h.total += end - i;
      i = end;
    }
    h.end = std::ssize(token);
    histories.push_back(h);
  }
  index = FlatMap<uint32_t>(histories.size());
  for (uint32_t n = 0; n < histories.size(); ++n) {
    index.insert(histories[n].key, n);
  }
}

const Trigram::History* Trigram::Order::find(uint64_t history) const {
  const uint32_t* found = index.find(history);
  return found == nullptr ? nullptr : &histories[*found];
}

double Trigram::Order::interpolate(const History* history, int32_t w, double lower) const {
  if (history == nullptr) return lower;
  const auto begin = token.begin() + history->begin, end = token.begin() + history->end;
  const auto at = std::lower_bound(begin, end, w);
  const double seen = at != end && *at == w ? count[at - token.begin()] : 0;
  const double types = history->end - history->begin;
  return (seen + types * lower) / (history->total + types);
}

Trigram::Trigram(const TokenStream& train, int32_t eos) : eos_(eos), vocab_(train.vocab_size()) {
  // Every token with the two before it is one integer (every document begins after two ends of
  // text). Sorted, equal trigrams stand together and are counted; cut by their first token, the
  // same integers are the bigrams, and cut again the single tokens.
  if (vocab_ > 1 << kTokenBits) {
    fail("baselines", "vocabulary of {}; expected at most {}", vocab_, 1 << kTokenBits);
  }
  if (train.tokens() > INT32_MAX) {
    fail("baselines", "{} tokens to count; expected at most {}", train.tokens(), INT32_MAX);
  }
  std::vector<uint64_t> keys;
  keys.reserve(train.tokens());
  std::vector<int32_t> ids;
  for (int64_t d = 0; d < train.documents(); ++d) {
    const int64_t begin = train.document_begin(d);
    ids.resize(train.document_begin(d + 1) - begin);
    train.read(begin, ids);
    uint64_t u = eos, v = u;
    for (const uint64_t w : ids) {
      keys.push_back(u << (2 * kTokenBits) | v << kTokenBits | w);
      u = v;
      v = w;
    }
  }
  radix_sort(&keys, 3 * kTokenBits);
  trigram_.build(keys, kTokenBits);
  for (uint64_t& k : keys) {
    k &= (uint64_t{1} << (2 * kTokenBits)) - 1;
  }
  radix_sort(&keys, 2 * kTokenBits);
  bigram_.build(keys, kTokenBits);
  for (uint64_t& k : keys) {
    k &= (uint64_t{1} << kTokenBits) - 1;
  }
  radix_sort(&keys, kTokenBits);
  unigram_.build(keys, kTokenBits);
}

double Trigram::probability(int32_t u, int32_t v, int32_t w) const {
  const uint64_t left = u, right = v;
  double p = 1.0 / vocab_;
  p = unigram_.interpolate(unigram_.find(0), w, p);
  p = bigram_.interpolate(bigram_.find(right), w, p);
  return trigram_.interpolate(trigram_.find(left << kTokenBits | right), w, p);
}

BaselineResult Trigram::evaluate(const TokenStream& held_out) const {
  if (held_out.vocab_size() != vocab_) {
    fail("baselines", "held-out tokens of a vocabulary of {}; expected {}", held_out.vocab_size(),
         vocab_);
  }
  BaselineResult result;
  result.bytes = held_out.bytes();
  std::vector<int32_t> ids;
  for (int64_t d = 0; d < held_out.documents(); ++d) {
    const int64_t begin = held_out.document_begin(d);
    ids.resize(held_out.document_begin(d + 1) - begin);
    held_out.read(begin, ids);
    int32_t u = eos_, v = eos_;
    for (const int32_t w : ids) {
      result.bits -= std::log2(probability(u, v, w));
      u = v;
      v = w;
    }
  }
  return result;
}

namespace {

// The files for xz.
struct HeldOut {
  std::vector<TextPart> files;
  int64_t bytes = 0;
};

// The held-out files, which must be those that were prepared.
HeldOut held_out_files(const Dataset& dataset) {
  HeldOut held_out;
  TextReader reader;
  for (const Corpus::File& file : dataset.files()) {
    if (!file.valid) continue;
    const std::string text = file_exists(file.path) ? reader.read(file.text()) : "";
    if (text.empty() || hash128(text) != file.hash) {
      fail("baselines", "{} is gone or changed since `hocket data prepare`; try to prepare again",
           file.path);
    }
    held_out.files.push_back(file.text());
    held_out.bytes += std::ssize(text);
  }
  return held_out;
}

// Returns the result of xz over all files. Throws Error if one was truncated or grew meanwhile.
double bits_per_byte_of(const HeldOut& held_out, const BaselineResult& compressed) {
  if (compressed.bytes != held_out.bytes) {
    fail("baselines",
         "the held-out files changed while they were compressed: {} bytes were read; expected {}; "
         "try to prepare again",
         compressed.bytes, held_out.bytes);
  }
  return compressed.bits_per_byte();
}

// Returns the content of baselines.json for this data; nothing if it is absent, damaged, or of
// other data.
Baselines read_kept(const std::string& path, const std::string& fingerprint) {
  Baselines kept;
  try {
    const nlohmann::json json = read_json(path);
    const JsonView in(json, path);
    if (in.get_string("fingerprint") != fingerprint) return {};
    const auto number = [&](const char* key) -> std::optional<double> {
      if (!in.has(key)) return std::nullopt;
      return in.get_double(key);
    };
    kept = {number("xz"), number("xz_one_piece"), number("trigram")};
  } catch (const Error&) {
    return {};
  }
  return kept;
}

// Keeps baselines, so that the next caller need not compute them. A folder that cannot be written
// is no error.
void keep(const std::string& path, const std::string& fingerprint, const Baselines& baselines) {
  JsonWriter json({.indent = 2});
  json.object().member("fingerprint", fingerprint);
  for (const auto& [name, bits_per_byte] :
       {std::pair("xz", baselines.xz_each), std::pair("xz_one_piece", baselines.xz_one_piece),
        std::pair("trigram", baselines.trigram)}) {
    if (bits_per_byte) {
      json.member(name, *bits_per_byte);
    }
  }
  try {
    write_file_atomic(path, json.end().take() + "\n");
  } catch (const Error& error) {
    log_warning("the baselines could not be kept: {}", error.what());
  }
}

}  // namespace

Baselines run_baselines(const Dataset& dataset, BaselineChoice choice,
                        const std::function<void(const std::string&)>& progress) {
  // Compares the held-out texts with the prepared data before computing: xz reads the files again,
  // the trigram the tokens, and both must agree.
  if (dataset.valid() == nullptr || dataset.train() == nullptr) {
    fail("baselines", "{} has no validation split; try valid_fraction above 0", dataset.folder());
  }
  const auto report = [&](const std::string& what) {
    if (progress) {
      progress(what);
    }
  };
  Baselines result;
  HeldOut held_out;
  if (choice.xz) {
    held_out = held_out_files(dataset);
  }
  if (choice.trigram) {
    report("trigram: counting");
    const Trigram trigram(*dataset.train(), dataset.tokenizer().eos_id());
    report("trigram: held-out files");
    result.trigram = trigram.evaluate(*dataset.valid()).bits_per_byte();
  }
  if (choice.xz) {
    const std::vector<TextPart>& files = held_out.files;
    result.xz_each =
        bits_per_byte_of(held_out, xz_each(files, [&](int64_t done) {
                           report(fmt::format("xz -9e: {} of {} files", done, files.size()));
                         }));
    result.xz_one_piece = bits_per_byte_of(
        held_out, xz_one_piece(files, [&](int64_t done) {
          report(fmt::format("xz -9e in one piece: {} of {} files", done, files.size()));
        }));
  }
  return result;
}

Baselines kept_baselines(const Dataset& dataset, BaselineChoice choice,
                         const std::function<void(const std::string&)>& progress) {
  // Completes the results of an earlier call, stored beside the data, by missing ones; stores all,
  // and returns the requested ones.
  const std::string path = join_path(dataset.folder(), "baselines.json");
  Baselines all = read_kept(path, dataset.fingerprint());
  const BaselineChoice missing = {choice.xz && !(all.xz_each && all.xz_one_piece),
                                  choice.trigram && !all.trigram};
  if (missing.xz || missing.trigram) {
    const Baselines made = run_baselines(dataset, missing, progress);
    if (missing.trigram) {
      all.trigram = made.trigram;
    }
    if (missing.xz) {
      all.xz_each = made.xz_each;
      all.xz_one_piece = made.xz_one_piece;
    }
    keep(path, dataset.fingerprint(), all);
  }
  if (!choice.xz) {
    all.xz_each = all.xz_one_piece = std::nullopt;
  }
  if (!choice.trigram) {
    all.trigram = std::nullopt;
  }
  return all;
}

}  // namespace hocket::data
