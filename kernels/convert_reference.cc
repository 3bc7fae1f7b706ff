#include "tutti/base/check.h"
#include "tutti/kernels/convert.h"
#include "tutti/kernels/element.h"
#include "tutti/kernels/scaling.h"

namespace tutti {

void cast_reference(DataType from, const std::byte* input, DataType to, std::byte* output,
                    int64_t count, Scale scale) {
  TUTTI_CHECK(scale.divisor > 0);
  visit_dtype(from, [&]<class From>(std::type_identity<From>) {
    visit_dtype(to, [&]<class To>(std::type_identity<To>) {
      for (int64_t i = 0; i < count; ++i)
        store_element(output, i, cast_one<To>(load_element<From>(input, i), scale));
    });
  });
}

void scale_reference(DataType dtype, std::byte* data, int64_t count, Scale scale) {
  cast_reference(dtype, data, dtype, data, count, scale);
}

}  // namespace tutti
