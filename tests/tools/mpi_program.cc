// A program that uses MPI as well: `mpi_program LIBRARY before|after` calls MPI_Init before or
// after it makes a Communicator. It loads MPI by name, so that the build needs no MPI.
#include <dlfcn.h>
#include <tutti/tutti.h>

#include <cstdio>
#include <string>

int main(int count, char** words) {
  void* library = ::dlopen(words[1], RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr || count != 3) return 77;
  const auto initialize = reinterpret_cast<int (*)(int*, char***)>(::dlsym(library, "MPI_Init"));
  const auto finalize = reinterpret_cast<int (*)()>(::dlsym(library, "MPI_Finalize"));
  const bool before = words[2] == std::string("before");
  if (before) initialize(&count, &words);
  try {
    const auto comm = tutti::Communicator::create();
    if (!before) initialize(&count, &words);
    float value = static_cast<float>(comm->rank());
    comm->allreduce("value", std::span(&value, 1)).wait();
    if (comm->rank() == 0) std::printf("%g\n", value);
    finalize();
    return 0;
  } catch (const tutti::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
