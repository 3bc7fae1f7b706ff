// The C interface checks what a C compiler cannot, translates values and leaves the rest to the
// Communicator.

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "tutti/adapters/c/status.h"
#include "tutti/adapters/c/tutti.h"
#include "tutti/adapters/c/values.h"
#include "tutti/core/settings/option_table.h"
#include "tutti/core/settings/store_options.h"
#include "tutti/core/settings/version.h"

namespace tutti::c {

namespace {

void apply_settings(const char* const* settings, size_t count, Options& options) {
  if (count > 0) need(settings, "settings");
  Environment environment;
  for (size_t i = 0; i < count; ++i) {
    need(settings[i], "a setting");
    const std::string_view line = settings[i];
    const auto equals = line.find('=');
    if (equals == line.npos)
      throw refused(fmt::format("\"{}\" is not a setting (expected name=value)", line));
    std::string name = "TUTTI_";
    for (const char letter : line.substr(0, equals))
      name += static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
    environment[name] = line.substr(equals + 1);
  }
  read_settings(environment, options, "program");
  if (const auto secret = environment.find("TUTTI_SECRET"); secret != environment.end())
    options.secret = secret->second;
}

int create(tutti_comm_t* comm, const std::function<Options()>& options) {
  if (comm != nullptr) *comm = nullptr;
  return guarded([&] {
    need(comm, "comm");
    *comm = new tutti_comm{Communicator::create(options())};
  });
}

int number_of(tutti_comm_t comm, int (Communicator::*number)() const) {
  int result = -1;
  guarded([&] { result = (communicator_of(comm).*number)(); });
  return result;
}

Work& work_of(tutti_work_t work) {
  need(work, "work");
  return work->work;
}

}  // namespace

}  // namespace tutti::c

using namespace tutti;     // NOLINT: the functions below are the C side of that namespace
using namespace tutti::c;  // NOLINT

const char* tutti_version(void) { return kVersion.data(); }

int64_t tutti_tensor_bytes(const tutti_tensor_t* tensor) {
  int64_t bytes = -1;
  guarded([&] { bytes = view_of(tensor, "tensor").bytes(); });
  return bytes;
}

// --- communicators -------------------------------------------------------------------------------

int tutti_create(tutti_comm_t* comm) { return tutti_create_with(nullptr, 0, comm); }

int tutti_create_with(const char* const* settings, size_t count, tutti_comm_t* comm) {
  return create(comm, [&] {
    Options options;
    apply_settings(settings, count, options);
    return options;
  });
}

int tutti_create_thread(int rank, int size, tutti_store_t store, const char* const* settings,
                        size_t count, tutti_comm_t* comm) {
  return create(comm, [&] {
    need(store, "store");
    auto options = Options::thread_rank(rank, size, store->store);
    apply_settings(settings, count, options);
    return options;
  });
}

int tutti_create_in_store(int rank, int size, tutti_store_t store, const char* const* settings,
                          size_t count, tutti_comm_t* comm) {
  return create(comm, [&] {
    need(store, "store");
    auto options = options_in_store(rank, size, store->store);
    apply_settings(settings, count, options);
    return options;
  });
}

int tutti_close(tutti_comm_t comm, const char* error) {
  return guarded([&] { communicator_of(comm).close(error == nullptr ? "" : error); });
}

void tutti_destroy(tutti_comm_t comm) { delete comm; }

int tutti_rank(tutti_comm_t comm) { return number_of(comm, &Communicator::rank); }
int tutti_size(tutti_comm_t comm) { return number_of(comm, &Communicator::size); }
int tutti_local_rank(tutti_comm_t comm) { return number_of(comm, &Communicator::local_rank); }
int tutti_local_size(tutti_comm_t comm) { return number_of(comm, &Communicator::local_size); }

int tutti_hosts(tutti_comm_t comm) { return number_of(comm, &Communicator::hosts); }

const char* tutti_backend(tutti_comm_t comm) {
  return guarded([&] { communicator_of(comm); }) == TUTTI_OK ? comm->backend.c_str() : nullptr;
}

int tutti_split(tutti_comm_t comm, int color, int key, tutti_comm_t* part) {
  if (part != nullptr) *part = nullptr;
  return guarded([&] {
    need(part, "part");
    auto communicator = communicator_of(comm).split(color, key);
    if (communicator) *part = new tutti_comm{std::move(communicator)};
  });
}

int tutti_shrink(tutti_comm_t comm, double seconds, tutti_comm_t* survivors) {
  if (survivors != nullptr) *survivors = nullptr;
  return guarded([&] {
    need(survivors, "survivors");
    *survivors = new tutti_comm{communicator_of(comm).shrink(Deadline::after(seconds))};
  });
}

// --- names ---------------------------------------------------------------------------------------

int tutti_declare(tutti_comm_t comm, const char* name, const tutti_tensor_t* like,
                  tutti_name_t* handle) {
  if (handle != nullptr) *handle = nullptr;
  return guarded([&] {
    auto& communicator = communicator_of(comm);
    need(name, "name");
    need(handle, "handle");
    const auto view = view_of(like, "like");
    const auto declared = communicator.declare(name, view.shape(), view.dtype());
    const auto key =
        fmt::format("{}{} {}", to_string(view.dtype()), view.shape().to_string(), name);
    const std::lock_guard lock(comm->mutex);
    *handle = &comm->names.try_emplace(key, tutti_name{declared, name}).first->second;
  });
}

// --- works ---------------------------------------------------------------------------------------

int tutti_work_wait(tutti_work_t work) {
  return guarded([&] { work_of(work).wait(); });
}

int tutti_work_wait_for(tutti_work_t work, double seconds) {
  return guarded([&] { work_of(work).wait(Deadline::after(seconds)); });
}

int tutti_work_done(tutti_work_t work) {
  int done = -1;
  guarded([&] { done = work_of(work).done() ? 1 : 0; });
  return done;
}

int tutti_work_wait_on(tutti_work_t work, void* stream) {
  return guarded([&] { work_of(work).wait_on({stream}); });
}

int tutti_work_then(tutti_work_t work, void (*callback)(void* context, int status), void* context) {
  return guarded([&] {
    need(callback, "callback");
    work_of(work).then([callback, context](const std::exception_ptr& error) {
      callback(context, error ? keep_exception(error) : TUTTI_OK);
    });
  });
}

int tutti_work_output(tutti_work_t work, size_t index, tutti_tensor_t* output) {
  return guarded([&] {
    need(output, "output");
    Tensor tensor = work_of(work).output(index);
    *output = tensor_of(tensor);
    const std::lock_guard lock(work->mutex);
    if (work->outputs.size() <= index) work->outputs.resize(index + 1);
    work->outputs[index] = std::move(tensor);
  });
}

int tutti_work_received(tutti_work_t work, int64_t* rows, size_t capacity, size_t* count) {
  return guarded([&] {
    need(count, "count");
    if (capacity > 0) need(rows, "rows");
    const auto received = work_of(work).received_counts();
    *count = received.size();
    std::copy_n(received.begin(), std::min(capacity, received.size()), rows);
  });
}

int tutti_work_source(tutti_work_t work, int* source) {
  return guarded([&] {
    need(source, "source");
    *source = work_of(work).source();
  });
}

void tutti_work_release(tutti_work_t work) { delete work; }
