#include "tutti/core/engine/entry_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace tutti {
namespace {

TEST(EntryTable, ANameKeepsItsEntryInWhateverOrderItComes) {
  constexpr int kNames = 50;
  EntryTable table(kNames);
  std::map<std::string, Entry*> entries;
  std::vector<std::string> names;
  for (int i = 0; i < kNames; ++i) names.push_back("gradient " + std::to_string(i));
  std::mt19937 random(7);
  for (int step = 0; step < 20; ++step) {
    // Each order is used in two steps.
    if (step % 2 == 0) std::shuffle(names.begin(), names.end(), random);
    for (const auto& name : names) {
      Entry& entry = table.at(name);
      EXPECT_EQ(&entry, entries.emplace(name, &entry).first->second) << name;
      if (step % 3 == 0) table.again(*entries.begin()->second);
    }
  }
  EXPECT_EQ(table.allocations(), static_cast<uint64_t>(kNames));
  EXPECT_EQ(table.generation(), 1u);
}

TEST(EntryTable, NothingForgottenIsGivenOut) {
  constexpr size_t kCapacity = 8;
  EntryTable table(kCapacity);
  Entry& pending = table.at("pending");
  pending.pending = true;
  pending.request.name = "pending";
  const auto name = [](int i) { return "name " + std::to_string(i); };
  for (int round = 0; round < 3; ++round)
    for (int i = 0; i < 20; ++i) {
      const auto before = table.generation();
      Entry& entry = table.at(name(i));
      if (entry.request.name.empty()) entry.request.name = name(i);
      EXPECT_EQ(entry.request.name, name(i));
      EXPECT_EQ(&table.at("pending"), &pending);
      EXPECT_GE(table.generation(), before);
    }
  EXPECT_EQ(pending.request.name, "pending");
  EXPECT_GT(table.generation(), 1u);
  EXPECT_GT(table.allocations(), 21u);  // forgotten names were allocated again
}

TEST(EntryTable, WhatIsPendingComesInTheOrderOfSubmissionAlsoAtOneTime) {
  constexpr int kNames = 50;
  EntryTable table(kNames);
  const auto name = [](int i) { return "tensor " + std::to_string(7 * i % kNames); };
  for (int i = 0; i < kNames; ++i) {
    Entry& entry = table.at(name(i));
    entry.request.name = name(i);
    entry.order = static_cast<uint64_t>(i) + 1;
    entry.pending = i % 3 != 0;
  }
  int i = 0;
  for (const Entry* entry : table.pending()) {
    while (i % 3 == 0) ++i;
    EXPECT_EQ(entry->request.name, name(i++));
  }
  EXPECT_GE(i, kNames - 1);
}

}  // namespace
}  // namespace tutti
