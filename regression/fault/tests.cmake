# What breaks from outside: decks and launches that are refused, disks, memory, kills, files of others.

add_library(failing_files MODULE fault/failing_files.c)
target_link_libraries(failing_files PRIVATE ${CMAKE_DL_LIBS})
brume_script(failing_disk LABEL mpi)
brume_script(failing_files LABEL fault)
brume_script(slow_disk LABEL fault)
brume_script(slow_data LABEL fault)
brume_add_test(slow.failing_files slow 2 ${CMAKE_CURRENT_SOURCE_DIR}/fault/failing_files.sh 60)
set_property(TEST mpi.failing_disk mpi.nonfinite fault.failing_files fault.slow_disk fault.slow_data slow.failing_files APPEND PROPERTY ENVIRONMENT
  BRUME_FAILING_FILES=$<TARGET_FILE:failing_files>)
set_tests_properties(slow.failing_files PROPERTIES TIMEOUT 3600)

brume_test(hostile_files LABEL fault USES interop)
# The same kinds of files by libFuzzer, for `make fuzz`.
if(BRUME_SANITIZE MATCHES fuzzer)
  brume_test_program(fuzz fault/fuzz.cpp brume_interop GTest::gtest)
  target_link_options(fuzz PRIVATE -fsanitize=fuzzer)
endif()
brume_add_test(slow.hostile_files slow 1 env BRUME_MUTANTS=2500 $<TARGET_FILE:fault_hostile_files>)
set(fuzz ${CMAKE_CURRENT_SOURCE_DIR}/fault/fuzz.sh ${PROJECT_SOURCE_DIR}/build-fuzz/regression/fuzz)
brume_add_test(fault.fuzz "fault;slow" 2 ${fuzz} 20 2)
brume_add_test(slow.fuzz slow 2 ${fuzz} 200 2)
set_tests_properties(fault.fuzz PROPERTIES TIMEOUT 1200)
set_tests_properties(slow.fuzz PROPERTIES TIMEOUT 7200)

add_library(failing_memory MODULE fault/failing_memory.cpp)
target_link_libraries(failing_memory PRIVATE ${CMAKE_DL_LIBS})
brume_script(failing_memory LABEL fault)
brume_add_test(slow.failing_memory slow 2 ${CMAKE_CURRENT_SOURCE_DIR}/fault/failing_memory.sh 2000)
set_property(TEST fault.failing_memory slow.failing_memory APPEND PROPERTY ENVIRONMENT
  BRUME_FAILING_MEMORY=$<TARGET_FILE:failing_memory>)
set_tests_properties(slow.failing_memory PROPERTIES TIMEOUT 7200)

add_library(early_signal MODULE fault/early_signal.c)
brume_script(early_signal LABEL fault)
set_property(TEST fault.early_signal APPEND PROPERTY ENVIRONMENT
  BRUME_EARLY_SIGNALS=$<TARGET_FILE:early_signal>)

brume_script(analyze_fits LABEL fault)
add_library(leaving_checkpoint MODULE fault/leaving_checkpoint.c)
target_link_libraries(leaving_checkpoint PRIVATE ${CMAKE_DL_LIBS})
brume_script(leaving_checkpoint LABEL fault)
set_property(TEST fault.leaving_checkpoint APPEND PROPERTY ENVIRONMENT
  BRUME_LEAVING_CHECKPOINT_LIBRARY=$<TARGET_FILE:leaving_checkpoint>)

brume_script(turns LABEL fault)
brume_script(process_limit LABEL fault)
brume_script(node_memory LABEL fault)
brume_script(outputs LABEL fault)
brume_script(folders LABEL fault)
brume_script(profile_cache LABEL fault)
brume_script(launches LABEL fault)
# Where cores are shared.
set_tests_properties(fault.failing_memory fault.failing_files fault.folders mpi.elastic PROPERTIES TIMEOUT 900)
brume_script(ctrl_c LABEL fault)
# Those with two labels take minutes: `ctest -L fault` runs them, `make check` does not.
brume_add_test(fault.kills "fault;slow" 4 ${CMAKE_CURRENT_SOURCE_DIR}/slow/soak.sh 1500)
set_tests_properties(fault.kills PROPERTIES TIMEOUT 1200)
brume_add_test(fault.checkpoint_cost "fault;slow" 2 ${CMAKE_CURRENT_SOURCE_DIR}/fault/checkpoint_cost.sh
  $<TARGET_FILE:perf_checkpoint>)
set_tests_properties(fault.checkpoint_cost PROPERTIES TIMEOUT 1200)

brume_fault(unknown_key RUN check ${CMAKE_CURRENT_SOURCE_DIR}/fault/unknown_key.toml
  EXIT 2 SAYS "unknown key 'model.num_layer'")
brume_fault(wrong_type RANKS 2 RUN run ${tiny} --set training.steps="ten" EXIT 2 SAYS "'training.steps' must be an integer")
brume_fault(loss_scale RUN check ${tiny} --set training.loss_scale=3 EXIT 2 SAYS "must be 0 or a power of two, found 3")
brume_fault(no_such_parameter RUN check ${CMAKE_CURRENT_SOURCE_DIR}/fault/no_such_parameter.toml EXIT 2
  SAYS "fits no parameter of the model, whose names go from embedding.token to head.norm.bias")
# An 8B model on a laptop, whose own speed would take hours to measure.
brume_fault(long_measurement RUN plan ${tiny} --set model.num_layers=32 --set model.hidden_size=4096 --set model.seq_len=4096
  --set model.vocab_size=32000 --set cluster.memory_gib=100 --set cluster.host_memory_gib=400
  EXIT 2 SAYS "name the machine to plan for by cluster.machine")
brume_fault(unknown_verb RUN chek EXIT 2 SAYS "verb 'chek' is not known; did you mean 'check'?")
brume_fault(unknown_option RUN check --sett a=1 deck.toml EXIT 2 SAYS "did you mean '--set'?")
brume_fault(no_verb RUN --verbose EXIT 2 SAYS "Plan (or use --plan), train and resume")
brume_fault(rollback_to_nothing RUN check ${tiny} --set training.on_nonfinite=rollback --set output.checkpoints=false
  EXIT 2 SAYS "rollback needs output.checkpoints")
brume_fault(mist_does_not_run RANKS 2 RUN run ${tiny} ${with_profile} --set analysis.conventions=mist
  EXIT 2 SAYS "is for comparisons with Mist only")
brume_fault(mist_does_not_simulate RUN simulate ${tiny} ${with_profile} --set analysis.conventions=mist --plan any.toml
  EXIT 2 SAYS "is for comparisons with Mist only")
brume_fault(unknown_profile RUN plan ${tiny} --set cluster.profile=l5 EXIT 2 SAYS "did you mean 'l4'?")
brume_fault(selftest_profile RANKS 2 RUN selftest --profile nowhere EXIT 2 SAYS "profile 'nowhere' not found. Shipped: ")
brume_fault(missing_deck RANKS 2 RUN run nowhere.toml EXIT 2 SAYS "nowhere.toml")
brume_fault(missing_tokens RANKS 4 RUN run ${tiny} --set data.train=nowhere.tok EXIT 2 SAYS "nowhere.tok")
brume_fault(broken_tokens RANKS 4 RUN run ${tiny} --set data.train=broken.tok EXIT 2 SAYS "broken.tok")
brume_fault(nothing_fits RANKS 4 RUN run ${tiny} ${with_profile} --set cluster.memory_gib=0.001 --set model.hidden_size=256
  EXIT 3 SAYS "memory_gib")
set(exploding --set training.optimizer.lr=1e30 --set output.checkpoint_every=1)
brume_fault(exploding_skip RANKS 4 RUN run ${tiny} ${with_profile} ${exploding} --set training.max_skipped=5
  EXIT 2 SAYS "are not finite, now 5 steps in a row")
brume_fault(exploding_rollback RANKS 4 RUN run ${tiny} ${with_profile} ${exploding}
  --set training.on_nonfinite=rollback --set training.max_skipped=3 EXIT 2 SAYS "no checkpoint left to go back to")
brume_fault(exploding_stop RANKS 4 RUN run ${tiny} ${with_profile} ${exploding}
  --set training.on_nonfinite=stop EXIT 2 SAYS "are not finite: lower training.optimizer.lr")
set(gpu_profile --set cluster.profile=${PROJECT_SOURCE_DIR}/perf/decks/gpu_profile.toml)
brume_fault(time_limit RUN plan ${PROJECT_SOURCE_DIR}/perf/decks/llama-70b.toml ${gpu_profile} --set cluster.nodes=4
  --set cluster.memory_gib=0.5 --set search.time_limit_s=0.5 EXIT 3 SAYS "search.time_limit_s = 0.5 ended the search")
brume_fault(time_limit_of_many_layers RUN plan ${tiny} ${with_profile} --set model.num_layers=2000 --set cluster.memory_gib=1
  --set cluster.host_memory_gib=1 --set search.time_limit_s=0.05 EXIT 3 SAYS "search.time_limit_s = 0.05 ended the search")
brume_fault(missing_config RUN check ${tiny} --set model.config=nowhere.json EXIT 2
  SAYS "--set model.config=nowhere.json: 'model.config': nowhere.json: cannot be opened")
brume_fault(no_steps RUN run ${tiny} --steps 0 EXIT 2 SAYS "--steps: must be above 0, found 0")
brume_fault(no_minutes RUN run ${tiny} --max-minutes -1 EXIT 2 SAYS "--max-minutes: must be above 0, found -1")
brume_fault(home_after_equals RUN plan ${tiny} --output=~/plan.toml EXIT 2 SAYS "--output=~/plan.toml: only a shell expands")
brume_fault(top RUN plan ${tiny} --top -3 EXIT 2 SAYS "--top: Value -3 not in range")
brume_fault(sweep_without_output RUN plan ${tiny} --sweep cluster.nodes=1 -o plan.toml EXIT 2
  SAYS "--output excludes --sweep")
brume_fault(search_state RUN plan ${tiny} ${with_profile} --search-state ${CMAKE_CURRENT_SOURCE_DIR}/fault/unknown_key.toml EXIT 2
  SAYS "missing key 'version'")
brume_fault(sweep_of_many RUN plan ${tiny} --sweep cluster.nodes=-2147483648..2147483647 EXIT 2
  SAYS "at most 1000 in all")
# Found before the search, which would take a minute.
brume_fault(no_folder RUN plan ${PROJECT_SOURCE_DIR}/perf/decks/llama-70b.toml ${gpu_profile} -o nowhere/plan.toml
  EXIT 6 SAYS "cannot write nowhere/plan.toml: No such file or directory")
set(fault ${CMAKE_CURRENT_SOURCE_DIR}/fault)
brume_fault(other_batch RUN analyze ${tiny} ${with_profile} --plan ${fault}/on_disk.toml --set training.global_batch=16
  EXIT 2 SAYS "the deck asks for training.global_batch = 16")
brume_fault(analyze_misfit RUN analyze ${tiny} ${with_profile} --plan ${fault}/on_disk.toml --set cluster.memory_gib=0.001
  --set model.hidden_size=64 --set cluster.disk_gib=1 EXIT 3 SAYS "more than cluster.memory_gib leaves")
brume_fault(huge_mesh RUN analyze ${tiny} ${with_profile} --plan ${fault}/huge_mesh.toml EXIT 2
  SAYS "dp x tp = 1 x 4 must be the 2147483647 x 4 devices of its mesh")
brume_fault(many_devices RUN analyze ${tiny} ${with_profile} --plan ${fault}/many_devices.toml EXIT 2
  SAYS "may use 1073741824 devices")
brume_fault(many_microbatches RUN simulate ${tiny} ${with_profile} --plan ${fault}/many_microbatches.toml
  --set training.global_batch=16777216 EXIT 2 SAYS "passes over layers in a step")
foreach(verb plan check)
  brume_fault(full_output_of_${verb} RUN ${verb} ${tiny} ${with_profile} EXIT 6 SAYS "standard output cannot be written")
  set_property(TEST fault.full_output_of_${verb} APPEND PROPERTY ENVIRONMENT BRUME_STDOUT=/dev/full)
endforeach()
brume_fault(sweep RUN plan ${tiny} --sweep cluster.nodes EXIT 2 SAYS "--sweep must be key=a,b,c")
brume_fault(no_directory RANKS 4 RUN run ${tiny} ${with_profile} --set output.directory=/proc/nowhere
  EXIT 6 SAYS "/proc/nowhere")
set(on_disk ${with_profile} --plan ${CMAKE_CURRENT_SOURCE_DIR}/fault/on_disk.toml)
brume_fault(no_disk RANKS 4 RUN run ${tiny} ${on_disk} EXIT 3 SAYS "cluster.disk_gib gives 0 B: keep less there")
brume_fault(no_scratch RANKS 4 RUN run ${tiny} ${on_disk} --set cluster.disk_gib=0.1 --set cluster.scratch=/proc/nowhere
  EXIT 6 SAYS "cannot make a scratch file in '/proc/nowhere'")
brume_fault(no_disk_times RUN plan ${tiny} --set cluster.profile=l4 --set cluster.disk_gib=0.1
  EXIT 2 SAYS "which cluster.disk_gib needs")

# What breaks from outside, wherever its tests stand.
set_property(TEST unit.watchdog unit.memory unit.replicas unit.stragglers unit.run_lock unit.checkpoint
  unit.run_file unit.checkpoint_clock unit.checkpoint_fault unit.checkpoint_kill unit.metrics_log unit.token_file unit.safetensors
  mpi.agree_on_4 mpi.heartbeat_on_4 mpi.stop mpi.signals mpi.left_out mpi.nodes mpi.silence
  mpi.silence_between_steps mpi.directory mpi.tokens mpi.template mpi.failing_disk mpi.nonfinite mpi.straggler mpi.elastic APPEND PROPERTY LABELS fault)
