// Stores that a program brings to the C interface.
#include <gtest/gtest.h>
#include <tutti.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

using std::string;

/// What a program may have: a table of its own behind a lock.
struct Table {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<string, string> values;  // guarded by mutex
  string broken;                    // of which every call fails, with this text
  int destroyed = 0;
};

Table& table_of(void* context) { return *static_cast<Table*>(context); }

int failed(Table& table) { return table.broken.empty() ? 0 : tutti_fail(5, table.broken.c_str()); }

void give(const string& text, tutti_value_t value) {
  EXPECT_EQ(tutti_value_set(value, text.data(), text.size()), TUTTI_OK);
}

int get(void* context, const char* key, tutti_value_t value) {
  auto& table = table_of(context);
  const std::lock_guard lock(table.mutex);
  if (const auto at = table.values.find(key); at != table.values.end()) give(at->second, value);
  return failed(table);
}

int compare_set(void* context, const char* key, const void* expected, size_t expected_size,
                const void* desired, size_t desired_size, tutti_value_t value) {
  auto& table = table_of(context);
  const std::lock_guard lock(table.mutex);
  const auto at = table.values.find(key);
  const bool is_as_expected =
      expected == nullptr
          ? at == table.values.end()
          : at != table.values.end() &&
                at->second == string(static_cast<const char*>(expected), expected_size);
  if (is_as_expected) table.values[key] = string(static_cast<const char*>(desired), desired_size);
  table.changed.notify_all();
  if (const auto now = table.values.find(key); now != table.values.end()) give(now->second, value);
  return failed(table);
}

int add(void* context, const char* key, int64_t amount, int64_t* sum) {
  auto& table = table_of(context);
  const std::lock_guard lock(table.mutex);
  auto& text = table.values[key];
  *sum = (text.empty() ? 0 : std::stoll(text)) + amount;
  text = std::to_string(*sum);
  table.changed.notify_all();
  return failed(table);
}

int set(void* context, const char* key, const void* value, size_t size) {
  auto& table = table_of(context);
  const std::lock_guard lock(table.mutex);
  table.values[key] = string(static_cast<const char*>(value), size);
  table.changed.notify_all();
  return failed(table);
}

int wait_for_key(void* context, const char* key, double seconds, tutti_value_t value) {
  auto& table = table_of(context);
  std::unique_lock lock(table.mutex);
  table.changed.wait_for(lock, std::chrono::duration<double>(seconds),
                         [&] { return table.values.contains(key); });
  if (table.values.contains(key)) give(table.values[key], value);
  return failed(table);
}

int erase(void* context, const char* key) {
  auto& table = table_of(context);
  const std::lock_guard lock(table.mutex);
  table.values.erase(key);
  return failed(table);
}

tutti_store_functions_t fewest(Table& table) {
  tutti_store_functions_t functions = {};
  functions.struct_size = sizeof functions;
  functions.context = &table;
  functions.get = get;
  functions.compare_set = compare_set;
  functions.add = add;
  functions.destroy = [](void* context) { ++table_of(context).destroyed; };
  return functions;
}

void allreduce_on(tutti_store_t store, int size) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([=] {
      const char* settings[] = {"connect_timeout=20"};
      tutti_comm_t comm;
      const int status = tutti_create_in_store(rank, size, store, settings, 1, &comm);
      ASSERT_EQ(status, TUTTI_OK) << tutti_last_error();
      double value = rank;
      EXPECT_EQ(tutti_allreduce_value(comm, "v", &value, TUTTI_SUM), TUTTI_OK);
      EXPECT_EQ(value, size * (size - 1) / 2.0);
      tutti_destroy(comm);
    });
  for (auto& rank : ranks) rank.join();
}

TEST(CStore, RanksMeetInAProgramsStoreOfTheFewestFunctions) {
  Table table;
  const auto functions = fewest(table);
  tutti_store_t store;
  ASSERT_EQ(tutti_store_create(&functions, &store), TUTTI_OK) << tutti_last_error();
  allreduce_on(store, 3);
  allreduce_on(store, 2);  // again, by other ranks
  EXPECT_EQ(table.destroyed, 0);
  tutti_store_destroy(store);
  EXPECT_EQ(table.destroyed, 1);
}

TEST(CStore, RanksMeetInAProgramsStoreOfAllFunctions) {
  Table table;
  auto functions = fewest(table);
  functions.set = set;
  functions.wait = wait_for_key;
  functions.erase = erase;
  functions.erase_all = [](void* context, const char* prefix) {
    auto& held = table_of(context);
    const std::lock_guard lock(held.mutex);
    std::erase_if(held.values, [&](const auto& entry) { return entry.first.starts_with(prefix); });
    return 0;
  };
  tutti_store_t store;
  ASSERT_EQ(tutti_store_create(&functions, &store), TUTTI_OK) << tutti_last_error();
  allreduce_on(store, 3);
  tutti_store_destroy(store);
  // Without TUTTI_SECRET the first rank has left one, which the others took.
  const std::lock_guard lock(table.mutex);
  EXPECT_EQ(table.values["job/secret"].empty(), std::getenv("TUTTI_SECRET") != nullptr);
}

TEST(CStore, WhatAFunctionSaysOfItsFailureIsInTheError) {
  Table table;
  table.broken = "the database is down";
  const auto functions = fewest(table);
  tutti_store_t store;
  ASSERT_EQ(tutti_store_create(&functions, &store), TUTTI_OK);
  tutti_comm_t comm;
  EXPECT_EQ(tutti_create_in_store(0, 2, store, nullptr, 0, &comm), TUTTI_UNAVAILABLE);
  EXPECT_NE(strstr(tutti_last_error(), "failed: the database is down"), nullptr)
      << tutti_last_error();
  EXPECT_EQ(comm, nullptr);
  tutti_store_destroy(store);
}

TEST(CStore, WhatIsMissingIsSaid) {
  Table table;
  auto functions = fewest(table);
  tutti_store_t store;
  EXPECT_EQ(tutti_store_create(nullptr, nullptr), TUTTI_INVALID_ARGUMENT);
  EXPECT_EQ(tutti_store_create(&functions, nullptr), TUTTI_INVALID_ARGUMENT);
  functions.add = nullptr;
  EXPECT_EQ(tutti_store_create(&functions, &store), TUTTI_INVALID_ARGUMENT);
  EXPECT_STREQ(tutti_last_error(), "add must not be NULL");
  functions.struct_size = 0;
  EXPECT_EQ(tutti_store_create(&functions, &store), TUTTI_INVALID_ARGUMENT);
  EXPECT_NE(strstr(tutti_last_error(), "struct_size"), nullptr);
  EXPECT_EQ(tutti_value_set(nullptr, "", 0), TUTTI_INVALID_ARGUMENT);
  tutti_comm_t comm;
  EXPECT_EQ(tutti_create_in_store(0, 1, nullptr, nullptr, 0, &comm), TUTTI_INVALID_ARGUMENT);
}

}  // namespace
