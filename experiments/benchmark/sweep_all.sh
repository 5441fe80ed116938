#!/usr/bin/env bash
# Runs the benchmark's sweeps, in the current folder, then stores results and writes README.md's table.
set -e

muxrl sweep benchmark/discrete --sweep-dir sweeps/spread
muxrl sweep benchmark/discrete base=benchmark/foraging --sweep-dir sweeps/foraging
muxrl sweep benchmark/discrete base=benchmark/tag 'roles.team=["adversary_*"]' --sweep-dir sweeps/tag
muxrl sweep benchmark/continuous --sweep-dir sweeps/spread_continuous
muxrl sweep benchmark/discrete base=benchmark/balance --sweep-dir sweeps/balance
muxrl sweep benchmark/discrete base=benchmark/speaker_listener --sweep-dir sweeps/speaker_listener
SHORT=$(echo algorithms.{qmix,vdn,qplex,iql}.settings.updates_per_episode=0.1)
TURNS=$(echo algorithms.{qmix,vdn,qplex,iql,maddpg}.late_members=allow)
muxrl sweep benchmark/discrete base=benchmark/two_step --sweep-dir sweeps/two_step $SHORT
muxrl sweep benchmark/discrete base=benchmark/kuhn_poker 'roles.team=["player_0"]' --sweep-dir sweeps/kuhn_poker $SHORT
muxrl sweep benchmark/discrete base=benchmark/tiny_hanabi --sweep-dir sweeps/tiny_hanabi $SHORT $TURNS
muxrl sweep benchmark/discrete base=benchmark/warehouse --sweep-dir sweeps/warehouse

python -m muxrl.experiments.benchmark.store sweeps/*
