// SPDX-License-Identifier: Apache-2.0
// Token shards: written tokens come back, and damaged or hostile files are refused.
#include "data/shards.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "base/rng.h"
#include "tests/data/data_util.h"

namespace hocket::data {
namespace {

using Ids = std::vector<int32_t>;

constexpr Hash128 kTokenizer{1, 2};

std::string write(const TempFolder& folder, const std::string& name, int32_t vocab,
                  const std::vector<Ids>& documents, const Hash128& tokenizer = kTokenizer) {
  ShardWriter writer(vocab, tokenizer);
  for (const Ids& ids : documents) {
    writer.add(ids, static_cast<int64_t>(ids.size()) * 3);
  }
  writer.write(folder / name);
  return folder / name;
}

Ids read(const Shard& shard, int64_t begin, size_t count) {
  Ids out(count);
  shard.read(begin, out);
  return out;
}

TEST(Shard, ReadsBackWhatWasWritten) {
  const TempFolder folder;
  for (const int32_t vocab : {300, 65536, 65537, 200000}) {
    SCOPED_TRACE(vocab);
    const Ids first = {0, 5, vocab - 1}, second = {7}, third = {vocab - 2, 1};
    const Shard shard(write(folder, "s", vocab, {first, second, third}));
    EXPECT_EQ(shard.info().vocab_size, vocab);
    EXPECT_EQ(shard.info().tokens, 6);
    EXPECT_EQ(shard.info().documents, 3);
    EXPECT_EQ(shard.info().bytes, 18);
    EXPECT_EQ(shard.info().tokenizer, kTokenizer);
    EXPECT_EQ(read(shard, 0, 6), (Ids{0, 5, vocab - 1, 7, vocab - 2, 1}));
    EXPECT_EQ(read(shard, 2, 2), (Ids{vocab - 1, 7}));
    EXPECT_EQ(shard.document_begin(1), 3);
    EXPECT_EQ(shard.document_begin(3), 6);
    EXPECT_EQ(shard.document_bytes(2), 6);
    shard.verify();
    const size_t header = 128 + 8 * 7;
    EXPECT_EQ(file_size(folder / "s"),
              static_cast<int64_t>((header + 63) / 64 * 64 + 6 * (vocab <= 65536 ? 2 : 4)));
  }
}

// The layout that docs/data.md promises, read by offset.
TEST(Shard, HasTheDocumentedLayout) {
  const TempFolder folder;
  const std::string bytes = read_file(write(folder, "s", 1000, {{1, 2}, {3}}));
  const auto u64 = [&](size_t at) {
    uint64_t v;
    std::memcpy(&v, bytes.data() + at, 8);
    return v;
  };
  EXPECT_EQ(bytes.substr(0, 8), "HOCKETTK");
  EXPECT_EQ(u64(8), uint64_t{2} << 32 | 1);  // version 1, ids of 2 bytes
  EXPECT_EQ(u64(16), 3U);                    // tokens
  EXPECT_EQ(u64(24), 2U);                    // documents
  EXPECT_EQ(u64(32), 9U);                    // bytes
  EXPECT_EQ(u64(40), 1000U);                 // vocabulary
  EXPECT_EQ(u64(48), 1U);                    // tokenizer hash
  EXPECT_EQ(u64(56), 2U);
  EXPECT_EQ(u64(64), 192U);  // where the ids are
  EXPECT_EQ(u64(72), hash64(std::string_view(bytes).substr(192)));
  EXPECT_EQ(u64(128), 0U);  // begins
  EXPECT_EQ(u64(136), 2U);
  EXPECT_EQ(u64(144), 3U);
  EXPECT_EQ(u64(152), 6U);  // bytes of each
  EXPECT_EQ(u64(160), 3U);
  std::string header = bytes.substr(0, 128);
  std::memset(header.data() + 80, 0, 8);
  EXPECT_EQ(u64(80), hash64(std::string_view(bytes).substr(128, 40), hash64(header)));
}

TEST(Shard, RefusesEveryTruncationAndEveryFlippedByte) {
  const TempFolder folder;
  const std::string path = write(folder, "s", 1000, {{1, 2, 3}, {4, 5}});
  const std::string good = read_file(path);
  for (size_t n = 0; n < good.size(); ++n) {
    folder.add("t", good.substr(0, n));
    const std::string e = error_of([&] { Shard s(folder / "t"); });
    ASSERT_NE(e.find(folder / "t"), std::string::npos) << e;
  }
  folder.add("t", good + "x");
  EXPECT_ERROR(Shard(folder / "t"), "expected");
  const size_t index_end = 128 + 8 * 5, ids_at = 192;
  for (size_t n = 0; n < good.size(); ++n) {
    if (n >= index_end && n < ids_at) {
      continue;  // padding
    }
    std::string bad = good;
    bad[n] = static_cast<char>(bad[n] ^ 0x10);
    folder.add("t", bad);
    if (n < ids_at) {
      error_of([&] { Shard s(folder / "t"); });
    } else {
      EXPECT_ERROR(Shard(folder / "t").verify(), "checksum");
    }
  }
  folder.add("t", "");
  EXPECT_ERROR(Shard(folder / "t"), "truncated");
  EXPECT_ERROR(Shard(folder / "absent"), "absent");
  EXPECT_ERROR(Shard(folder.path()), folder.path());
}

// With checksums made right: the contents are still checked.
TEST(Shard, RefusesHostileIndexes) {
  const TempFolder folder;
  const std::string good = read_file(write(folder, "s", 1000, {{1, 2, 3}, {4, 5}}));
  const auto forge = [&](size_t at, uint64_t value) {
    std::string bad = good;
    std::memcpy(bad.data() + at, &value, 8);
    uint64_t documents;
    std::memcpy(&documents, bad.data() + 24, 8);
    std::memset(bad.data() + 80, 0, 8);
    const uint64_t sum =
        hash64(std::string_view(bad).substr(128, 40), hash64(std::string_view(bad).substr(0, 128)));
    std::memcpy(bad.data() + 80, &sum, 8);
    folder.add("t", bad);
    return folder / "t";
  };
  Shard same(forge(128, 0));  // the forger's checksums are right
  EXPECT_ERROR(Shard(forge(128, 1)), "index");
  EXPECT_ERROR(Shard(forge(136, 0)), "index");  // an empty document
  EXPECT_ERROR(Shard(forge(136, 6)), "index");  // beyond the tokens
  EXPECT_ERROR(Shard(forge(136, ~uint64_t{0})), "index");
  EXPECT_ERROR(Shard(forge(152, ~uint64_t{0})), "index");  // negative bytes
  EXPECT_ERROR(Shard(forge(152, 1)), "index");             // bytes that do not add up
  EXPECT_ERROR(Shard(forge(24, ~uint64_t{0} / 8)), "header");
  EXPECT_ERROR(Shard(forge(16, ~uint64_t{0} / 2 + 3)), "header");
  EXPECT_ERROR(Shard(forge(40, 0)), "header");
  EXPECT_ERROR(Shard(forge(40, 1 << 20)), "header");  // too many for ids of 2 bytes
  EXPECT_ERROR(Shard(forge(64, 64)), "header");
  EXPECT_ERROR(read(Shard(forge(40, 5)), 0, 5), "id 5");
}

TEST(Shard, RandomDamageNeverGetsThrough) {
  const TempFolder folder;
  const std::string good = read_file(write(folder, "s", 1000, {{1, 2, 3}, {4, 5}}));
  Rng rng(2);
  for (int trial = 0; trial < 500; ++trial) {
    std::string bad = good.substr(0, rng.uniform() < 0.3 ? rng.below(good.size()) : good.size());
    for (uint64_t n = rng.below(5); n > 0 && !bad.empty(); --n) {
      bad[rng.below(bad.size())] = static_cast<char>(rng.below(256));
    }
    folder.add("t", bad);
    try {
      const Shard shard(folder / "t");
      read(shard, 0, static_cast<size_t>(shard.info().tokens));
    } catch (const Error&) {
    }
  }
}

// Another process cuts off a file that is being trained on: an error, and no signal.
TEST(Shard, ATruncationWhileItIsOpenIsAnError) {
  const TempFolder folder;
  for (const int32_t vocab : {1000, 100'000}) {
    std::vector<Ids> documents(3, Ids(5000, 7));
    const std::string path = write(folder, "s", vocab, documents);
    const Shard shard(path);
    std::filesystem::resize_file(path, 8192);
    EXPECT_EQ(read(shard, 0, 10), Ids(10, 7));  // the rest of the file
    for (const int64_t begin : {4000, 14'000}) {
      try {
        read(shard, begin, 1000);
        ADD_FAILURE() << "read what is gone";
      } catch (const Error& e) {
        EXPECT_EQ(e.exit_code(), 1);
        EXPECT_NE(std::string(e.what()).find(path + "] was cut off while it was read; "
                                                    "got 8192 bytes; expected"),
                  std::string::npos)
            << e.what();
      }
    }
    EXPECT_THROW(shard.verify(), Error);
    EXPECT_EQ(shard.document_begin(2), 10'000);  // kept in memory
    std::filesystem::resize_file(path, 0);
    EXPECT_EQ(shard.document_bytes(2), 15'000);
  }
}

TEST(ShardWriter, FullDiskLeavesTheOldFile) {
  const TempFolder folder;
  const std::string path = write(folder, "s", 1000, {{1, 2, 3}});
  const std::string before = read_file(path);
  for (const FileFaults::Op op : {FileFaults::Op::open, FileFaults::Op::write, FileFaults::Op::sync,
                                  FileFaults::Op::rename}) {
    const FileFaults full(op, 1, ENOSPC);
    EXPECT_THROW(write(folder, "s", 1000, {{9}}), Error);
  }
  EXPECT_EQ(read_file(path), before);
  EXPECT_EQ(list_dir(folder.path()).size(), 1U);
  EXPECT_ERROR(ShardWriter(10, kTokenizer).write(path), "no documents");
}

TEST(TokenStream, ManyShardsAreOneSequence) {
  const TempFolder folder;
  const std::vector<std::string> paths = {write(folder, "a", 100, {{1, 2, 0}, {3, 0}}),
                                          write(folder, "b", 100, {{4, 0}}),
                                          write(folder, "c", 100, {{0}, {5, 6, 0}})};
  const TokenStream stream(paths);
  const Ids all = {1, 2, 0, 3, 0, 4, 0, 0, 5, 6, 0};
  EXPECT_EQ(stream.tokens(), 11);
  EXPECT_EQ(stream.documents(), 5);
  EXPECT_EQ(stream.bytes(), 33);
  for (size_t begin = 0; begin <= all.size(); ++begin) {
    for (size_t end = begin; end <= all.size(); ++end) {
      Ids got(end - begin);
      stream.read(static_cast<int64_t>(begin), got);
      EXPECT_EQ(got, Ids(all.begin() + static_cast<ptrdiff_t>(begin),
                         all.begin() + static_cast<ptrdiff_t>(end)));
    }
  }
  const std::vector<int64_t> begins = {0, 3, 5, 7, 8, 11}, bytes = {9, 6, 6, 3, 9};
  for (int64_t d = 0; d <= 5; ++d) {
    EXPECT_EQ(stream.document_begin(d), begins[d]);
  }
  for (int64_t d = 0; d < 5; ++d) {
    EXPECT_EQ(stream.document_bytes(d), bytes[d]);
  }
  const std::vector<int64_t> owner = {0, 0, 0, 1, 1, 2, 2, 3, 4, 4, 4};
  for (int64_t t = 0; t < 11; ++t) {
    EXPECT_EQ(stream.document_of(t), owner[t]);
  }
  stream.verify();
}

TEST(TokenStream, RefusesNoShardsAndThoseOfDifferentTokenizers) {
  const TempFolder folder;
  EXPECT_ERROR(TokenStream({}), "no shards");
  EXPECT_ERROR(
      TokenStream({write(folder, "a", 100, {{1}}), write(folder, "b", 100, {{1}}, {9, 9})}),
      "different tokenizers");
  EXPECT_ERROR(TokenStream({write(folder, "a", 100, {{1}}), write(folder, "b", 101, {{1}})}),
               "different tokenizers");
}

}  // namespace
}  // namespace hocket::data
