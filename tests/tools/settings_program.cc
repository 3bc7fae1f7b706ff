// A rank whose program sets its backend in code, but neither its rank nor the size of the job:
// `settings_program cpp|c`. Rank 0 prints the mean over all ranks, the number of ranks, and the
// backend.
#include <tutti.h>
#include <tutti/tutti.h>

#include <cstdio>
#include <string>

namespace {

int by_cpp() {
  const auto comm = tutti::Communicator::create({.backend = "tcp", .fusion_bytes = 1 << 20});
  const auto& options = comm->options();
  float value = static_cast<float>(comm->rank());
  comm->allreduce("value", std::span(&value, 1)).wait();
  // A setting from the environment is used beside the program's own settings.
  if (options.fusion_bytes != 1 << 20 || options.cache_capacity != 77) return 3;
  if (comm->rank() == 0)
    std::printf("%g of %d by %s\n", value, comm->size(), comm->backend().c_str());
  return 0;
}

int by_c() {
  const char* settings[] = {"backend=tcp", "fusion_bytes=1M"};
  tutti_comm_t comm = nullptr;
  if (tutti_create_with(settings, 2, &comm) != TUTTI_OK) {
    std::fprintf(stderr, "%s\n", tutti_last_error());
    return 1;
  }
  float value = static_cast<float>(tutti_rank(comm));
  const auto tensor = tutti_vector(&value, 1, TUTTI_F32);
  tutti_call_t call = TUTTI_CALL(TUTTI_ALLREDUCE);
  call.name = "value";
  call.input = &tensor;
  const int status = tutti_run(comm, &call);
  if (status == TUTTI_OK && tutti_rank(comm) == 0)
    std::printf("%g of %d by %s\n", value, tutti_size(comm), tutti_backend(comm));
  tutti_destroy(comm);
  return status;
}

}  // namespace

int main(int count, char** words) {
  try {
    return count == 2 && words[1] == std::string("c") ? by_c() : by_cpp();
  } catch (const tutti::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
