// A loader that cannot start a thread makes its batches in the caller's thread.

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <cerrno>
#include <cstring>

#include "tutti/adapters/nn/data.h"

namespace {

thread_local bool gets_no_thread = false;

}  // namespace

// Replaces the system's function, for the library too.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*function)(void*), void* argument) {
  static const auto kReal =
      reinterpret_cast<decltype(&::pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  return gets_no_thread ? EAGAIN : kReal(thread, attributes, function, argument);
}

namespace tutti::nn {
namespace {

TEST(LoaderWithoutThreads, DealsTheSameBatches) {
  const Dataset data{Tensor(Shape{24, 1, 2, 2}, DataType::u8), Tensor(Shape{24}, DataType::u8), 10};
  for (int64_t i = 0; i < data.images.count(); ++i)
    data.images.as<uint8_t>()[i] = static_cast<uint8_t>(i);
  DataLoader loader(data, {.batch = 5}), without(data, {.batch = 5});
  for (int step = 0; step < 11; ++step) {
    const auto batch = loader.next();
    gets_no_thread = step != 7;
    const auto same = without.next();
    gets_no_thread = false;
    ASSERT_EQ(batch.has_value(), same.has_value()) << step;
    if (!batch) continue;
    EXPECT_EQ(std::memcmp(batch->images.data(), same->images.data(),
                          static_cast<size_t>(batch->images.bytes())),
              0)
        << step;
  }
}

}  // namespace
}  // namespace tutti::nn
