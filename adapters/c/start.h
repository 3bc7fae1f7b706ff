#pragma once

#include <memory>
#include <utility>

#include "tutti/adapters/c/status.h"
#include "tutti/adapters/c/tutti.h"
#include "tutti/adapters/c/values.h"

// Starts operations for the calls of the C interface.

namespace tutti::c {

inline Work& work_of(tutti_work_t work) {
  need(work, "work");
  return work->work;
}

/// Starts the operation that `body` returns and puts its handle into *work. If `work` is NULL, this
/// waits for the operation instead.
template <class Body>
int start(tutti_comm_t comm, const char* name, tutti_work_t* work, Body&& body) {
  if (work != nullptr) *work = nullptr;
  return guarded([&] {
    auto& communicator = communicator_of(comm);
    need(name, "name");
    if (work == nullptr) return body(communicator).wait();
    auto handle = std::make_unique<tutti_work>();
    handle->work = body(communicator);
    *work = handle.release();
  });
}

/// Like start(), for operations whose results the library allocates. They need a `work`, because
/// its handle owns the results.
template <class Body>
int start_with_output(tutti_comm_t comm, const char* name, tutti_work_t* work, Body&& body) {
  if (work == nullptr)
    return guarded([] { throw refused("work must not be NULL: the result is its output"); });
  return start(comm, name, work, std::forward<Body>(body));
}

}  // namespace tutti::c
