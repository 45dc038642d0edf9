// The smallest program on an installed Lowtide: how many tensor bytes does a product of two matrices
// hold at its peak?

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <lowtide/bytes.h>
#include <lowtide/memory_meter.h>

#include <iostream>

int main() {
  const lowtide::MemoryMeter meter;
  {
    const at::Tensor a = at::ones({512, 512});
    const at::Tensor product = at::mm(a, a);
  }
  std::cout << "peak " << lowtide::format_bytes(meter.peak_bytes()) << ", now live "
            << lowtide::format_bytes(meter.live_bytes()) << '\n';
  return meter.peak_bytes() >= 2 * 512 * 512 * sizeof(float) ? 0 : 1;
}
