#include "src/evidence/frame_origin.h"

#include <doctest/doctest.h>

using namespace lowtide;  // the tests of one header

TEST_CASE("frames are known by path and, in C++, by namespace") {
  struct Case {
    const char* file;
    const char* function;
    FrameOrigin origin;
  };
  for (const Case& each : {
           Case{"/home/ann/job/model.py", "forward", FrameOrigin::kUser},
           Case{"/tmp/ipykernel_7/123.py", "<module>", FrameOrigin::kUser},
           Case{"<ipython-input-3-ab>", "<module>", FrameOrigin::kUser},
           Case{"D:\\job\\model.py", "forward", FrameOrigin::kUser},
           Case{"/home/ann/torch/model.py", "forward", FrameOrigin::kUser},
           Case{"/v/lib/python3.12/site-packages/einops/einops.py", "einsum",
                FrameOrigin::kLibrary},
           Case{"/usr/lib/python3.11/threading.py", "run", FrameOrigin::kLibrary},
           Case{"/v/lib/python3.12/site-packages/torch/nn/modules/module.py", "_call_impl",
                FrameOrigin::kTorch},
           Case{"D:\\job\\.venv\\Lib\\site-packages\\torch\\functional.py", "einsum",
                FrameOrigin::kTorch},
           Case{"/opt/pytorch/torch/nn/functional.py", "relu", FrameOrigin::kTorch},
           Case{"/tmp/torchinductor_ann/ab/cab.py", "call", FrameOrigin::kCompiled},
           Case{"CUDACachingAllocator.cpp", "c10::cuda::malloc", FrameOrigin::kNative},
           Case{"??", "_start", FrameOrigin::kNative},
           Case{"", "void at::native::add<float>()", FrameOrigin::kNative},
           Case{"./csu/../csu/libc-start.c", "__libc_start_main_impl", FrameOrigin::kNative},
           Case{"/home/ann/job/train.cpp", "train_step(int)", FrameOrigin::kNativeUser},
           Case{"/home/ann/job/train.cpp", "std::function<void ()>::operator()",
                FrameOrigin::kNative},
           Case{"/home/ann/job/train.cpp", "run(at::Tensor)", FrameOrigin::kNativeUser},
       }) {
    CAPTURE(each.file);
    CAPTURE(each.function);
    CHECK(frame_origin(each.file, each.function) == each.origin);
  }
}
