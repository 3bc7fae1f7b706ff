// A libcuda.so.1 whose version and start result come from two environment variables. It stands for
// the driver of a machine that is too old, sees no GPU or does not start. In these cases CUDA's
// runtime calls nothing else.
#include <cstdlib>

namespace {

int number_of(const char* variable) {
  const char* text = std::getenv(variable);
  return text == nullptr ? 0 : std::atoi(text);
}

}  // namespace

extern "C" {

int cuDriverGetVersion(int* version) {
  *version = number_of("OTHER_DRIVER_VERSION");
  return 0;
}

int cuInit(unsigned) { return number_of("OTHER_DRIVER_STARTS"); }

}  // extern "C"
