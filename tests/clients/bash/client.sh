#!/usr/bin/env bash
# A Caravan client in bash alone: no library, no jq, only /dev/tcp, printf and read (and b2sum, where it is there).
# CARAVAN_NATS_URL names the bus, user and password inside. Submits a job, follows it until it runs, stops it, follows
# it until it is over, and reads what the log says of that time.
set -euo pipefail
export LC_ALL=C # lengths are bytes

url=${CARAVAN_NATS_URL:?is what "caravan context env" prints}
url=${url%%,*} # a bus of several servers: the first
login=${url#nats://}
address=${login##*@} user=${login%%:*}
login=${login%@*}
job_id='café/menu.bash'
task='{"Name":"sleep","Driver":"raw_exec","Config":{"command":"/bin/sleep","args":["3600"]},
  "Resources":{"CPU":20,"MemoryMB":16}}'
job='{"ID":"'$job_id'","Update":{"MinHealthyTime":1000000000},
  "TaskGroups":[{"Name":"kitchen","Count":2,"Tasks":['$task']}]}'

die() {
  echo "$*" >&2
  exit 1
}

# ---- the protocol of NATS: lines, and payloads of a said length ----

pause=1
until { exec 3<>"/dev/tcp/${address%:*}/${address##*:}"; } 2>/dev/null; do
  echo "waiting for the bus at $address" >&2
  sleep "$pause"
  pause=$((pause < 8 ? 2 * pause : 8))
done
inbox=_INBOX.$user.$$-$RANDOM # a user may listen behind its own name only
asked=0

send() { printf '%s\r\n' "$@" >&3; }

# receive SECONDS: the next message into subject, status (of a reply without a body), headers and body.
receive() {
  local line words size
  while IFS= read -r -t "$1" -u 3 line; do
    line=${line%$'\r'}
    case $line in
      PING) send PONG ;;
      -ERR*) die "the bus says $line" ;;
      MSG\ * | HMSG\ *)
        read -ra words <<<"$line"
        subject=${words[1]} size=${words[-1]} headers='' status=''
        if [[ $line == HMSG* ]]; then
          IFS= read -r -N "${words[-2]}" -u 3 headers
          size=$((size - words[-2]))
          [[ $headers =~ ^NATS/1.0\ ([0-9]+) ]] && status=${BASH_REMATCH[1]}
        fi
        body=''
        ((size == 0)) || IFS= read -r -N "$size" -u 3 body
        IFS= read -r -u 3 # the line's end behind the payload
        return 0
        ;;
    esac
  done
  return 1
}

# ask SUBJECT BODY: one request and its one answer; what else comes meanwhile is passed over.
ask() {
  local reply=$inbox.$((++asked))
  send "PUB $1 $reply ${#2}" "$2"
  while receive 6; do
    [[ $subject == "$reply" ]] && return 0
  done
  return 1
}

# ---- Caravan ----

# token ID: the id as one token of a subject.
token() {
  local out='' byte code i
  for ((i = 0; i < ${#1}; i++)); do
    byte=${1:i:1}
    if [[ $byte != [A-Za-z0-9_-] ]]; then
      printf -v code %d "'$byte"
      printf -v byte '~%02X' $((code & 255))
    fi
    out+=$byte
  done
  echo "$out"
}

# number NAME: the first number of that name in body.
number() { [[ $body =~ \"$1\":([0-9]+) ]] && echo "${BASH_REMATCH[1]}"; }

# submit VERB MEMBERS: ask for a verdict, again under the same id while there is none; its seq into seq.
submit() {
  local message="{$2,\"SubmissionID\":\"bash-$$-$RANDOM-$RANDOM\"}"
  for _ in {1..10}; do
    if ! ask "api.jobs.$1" "$message" || [[ $status || $body == *'"code":"unavailable"'* ]]; then
      sleep 0.5 # no service there yet
    elif [[ $body == *'"status":"accepted"'* ]]; then
      seq=$(number seq)
      return
    elif [[ $body == *'"status":"refused"'* ]]; then
      die "refused: $body"
    fi
  done
  die 'no verdict'
}

# follow STATUS: wait until the rollout, not older than seq, has a status; its seq into seq.
follow() {
  ask "$last_value" ''
  until [[ $body && $(number seq) -ge $seq && $body == *"\"rollout\":{\"status\":\"$1\""* ]]; do
    [[ $body && $(number seq) -ge $seq && $body == *'"rollout":{"status":"failed"'* ]] && die "failed: $body"
    receive 5 || ask "$last_value" '' || die 'the bus is silent'
  done
  seq=$(number seq)
}

# read_record SEQ PREV: one record by direct get, checked, as a line of JSON into record; its checksum into sum.
read_record() {
  ask "\$JS.API.DIRECT.GET.LOG_1" "{\"seq\":$1}"
  [[ $body =~ ^\{\"kind\":\"([a-z]+)\".*\"prev\":\"([0-9a-f]*)\" ]] || die "no record at $1: $status"
  [[ -z $2 || ${BASH_REMATCH[2]} == "$2" ]] || die "the chain is broken at $1"
  sum=${body: -34:32}
  record="{\"seq\":$1,\"kind\":\"${BASH_REMATCH[1]}\",\"sum\":\"$sum\"}"
  command -v b2sum >/dev/null || return 0
  [[ $(printf %s "${body:0:-42}" | b2sum --length=128) == "$sum "* ]] || die "the checksum fails at $1"
}

options='"verbose":false,"headers":true,"no_responders":true'
send "CONNECT {$options,\"user\":\"$user\",\"pass\":\"${login#*:}\"}" "SUB $inbox.* 1"
send "SUB view.job.$(token "$job_id") 2"
last_value="\$JS.API.DIRECT.GET.VIEW.view.job.$(token "$job_id")"

submit submit "\"Job\":$job"
submitted=$seq
follow running
running=$seq
submit stop "\"JobID\":\"$job_id\""
follow stopped
stopped=$seq

records='' sum=''
for ((at = submitted; at <= stopped; at++)); do
  read_record "$at" "$sum"
  records+=${records:+,}$record
done
echo "{\"submitted\":$submitted,\"running\":$running,\"stopped\":$stopped,\"records\":[$records]}"
