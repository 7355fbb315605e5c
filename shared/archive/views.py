"""Views: SQL tables and macros for users, over the facts of table_buffers.py.

Decides the names of columns; docs/sql.md describes them,
    held by a test. Every interval holds from its `from_seq` up to
just before its `to_seq`; a `to_seq` that is null has not come yet.
"""

from schemas.allocations import CLIENT_STATUSES, DESIRED_STATUSES
from shared.core.state.ids import ALLOC_SALT

_GAMMA, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _words(values: tuple[str, ...]) -> str:
    return "[" + ", ".join(f"'{one}'" for one in values) + "]"


_WORDS = f"""
CREATE MACRO _id(high, low) AS printf('%016x%016x', high, low)::UUID::VARCHAR;
CREATE MACRO _mul(a, b) AS ((a * b) % 18446744073709551616::UHUGEINT);
CREATE MACRO _mix_3(z) AS xor(z, z >> 31);
CREATE MACRO _mix_2(z) AS _mix_3(_mul(xor(z, z >> 27), {_MIX_2}::UHUGEINT));
CREATE MACRO _mix_1(z) AS _mix_2(_mul(xor(z, z >> 30), {_MIX_1}::UHUGEINT));
-- splitmix64 of 64 bits, as splitmix.py has it.
CREATE MACRO _mix(x) AS _mix_1((x + {_GAMMA}::UHUGEINT) % 18446744073709551616::UHUGEINT);
CREATE MACRO _pair(key, high) AS _id(high::UBIGINT, _mix(xor(high, key))::UBIGINT);
CREATE MACRO _alloc_id(key) AS _pair(key::UHUGEINT, _mix(xor(key::UHUGEINT, {ALLOC_SALT << 44}::UHUGEINT)));
CREATE MACRO at_ns(t_ns) AS make_timestamp(t_ns // 1000);
CREATE MACRO _client(code) AS {_words(CLIENT_STATUSES)}[code + 1];
CREATE MACRO _desired(code) AS {_words(DESIRED_STATUSES)}[code + 1];
"""

_TABLES = """
CREATE VIEW records AS SELECT * EXCLUDE (t_ns), at_ns(t_ns) AS time FROM facts.records;
CREATE VIEW events AS SELECT seq, n, at_ns(t_ns) AS time, type, job_id, node_id,
    TRY_CAST(body AS JSON) AS body FROM facts.events;

CREATE VIEW groups AS SELECT * EXCLUDE (seq), seq AS from_seq FROM facts.groups;
CREATE VIEW jobs AS
SELECT job_id, version, type, priority, node_pool, what AS status, seq AS from_seq, to_seq,
    at_ns(t_ns) AS from_time,
    at_ns(to_ns) AS to_time, submission_id, TRY_CAST(spec AS JSON) AS spec
FROM (
    SELECT * REPLACE (
            coalesce(nullif(version, -1), last_value(nullif(version, -1) IGNORE NULLS) OVER w) AS version,
            coalesce(nullif(priority, -1), last_value(nullif(priority, -1) IGNORE NULLS) OVER w) AS priority,
            coalesce(type, last_value(type IGNORE NULLS) OVER w) AS type,
            coalesce(node_pool, last_value(node_pool IGNORE NULLS) OVER w) AS node_pool
        ),
        lead(seq) OVER w AS to_seq, lead(t_ns) OVER w AS to_ns
    FROM facts.jobs WINDOW w AS (PARTITION BY job_id ORDER BY seq, n)
)
WHERE what <> 'collected';

CREATE VIEW launches AS
SELECT parent AS job_id, at_ns(at_ns) AS planned_time, child_id, forced, skipped, missed, seq, n,
    at_ns(t_ns) AS time
FROM facts.launches;

CREATE VIEW allocations AS
SELECT _id(p.id_high, p.id_low) AS id, p.job_id, p.group_name, p.name_index,
    p.job_id || '.' || p.group_name || '[' || p.name_index || ']' AS name,
    p.node_id, coalesce(u.version, p.version) AS version,
    p.seq AS placed_seq, at_ns(p.t_ns) AS placed_time, u.running_seq, at_ns(u.running_ns) AS running_time,
    u.ended_seq, at_ns(u.ended_ns) AS ended_time,
    _client(coalesce(u.client, 0)) AS client_status, _desired(coalesce(u.desired, 0)) AS desired_status, u.reason,
    p.previous_id::VARCHAR AS previous_id, p.reschedules, p.n AS n, p.key
FROM facts.placements p LEFT JOIN (
    SELECT key,
        arg_max(client, seq * 1024 + n) FILTER (client >= 0) AS client,
        arg_max(desired, seq * 1024 + n) FILTER (desired >= 0) AS desired,
        arg_max(version, seq * 1024 + n) FILTER (version >= 0) AS version,
        arg_max(reason, seq * 1024 + n) FILTER (reason IS NOT NULL) AS reason,
        min(seq) FILTER (client = 1) AS running_seq, min(t_ns) FILTER (client = 1) AS running_ns,
        min(seq) FILTER (is_end) AS ended_seq, min(t_ns) FILTER (is_end) AS ended_ns
    FROM facts.changes GROUP BY key
) u ON u.key = p.key;

CREATE VIEW allocation_states AS
SELECT _id(id_high, id_low) AS id, job_id, group_name, name_index, node_id, _client(client) AS client_status,
    seq AS from_seq,
    to_seq, at_ns(t_ns) AS from_time, at_ns(to_ns) AS to_time, (to_ns - t_ns) / 1e9 AS seconds, key
FROM (
    SELECT s.*, lead(seq) OVER w AS to_seq, lead(t_ns) OVER w AS to_ns FROM (
        SELECT id_high, id_low, key, seq, n, t_ns, 0 AS client, job_id, group_name, name_index,
        node_id FROM facts.placements
        UNION ALL
        SELECT p.id_high, p.id_low, c.key, c.seq, c.n, c.t_ns, c.client, p.job_id, p.group_name, p.name_index,
        p.node_id
        FROM facts.changes c JOIN facts.placements p ON p.key = c.key WHERE c.client >= 0
    ) s WINDOW w AS (PARTITION BY key ORDER BY seq, n)
);
CREATE VIEW pool_usage AS
SELECT _id(p.id_high, p.id_low) AS id, p.job_id, p.group_name, p.node_id, s.pool,
    nullif(s.instance, '') AS instance, s.amount * 0.0001::DECIMAL(5, 4) AS amount, s.seq AS from_seq,
    e.seq AS to_seq, at_ns(s.t_ns) AS from_time, at_ns(e.t_ns) AS to_time, (e.t_ns - s.t_ns) / 1e9 AS seconds, s.key
FROM facts.shares s JOIN facts.placements p ON p.key = s.key LEFT JOIN (
    SELECT key, min(seq) AS seq, min(t_ns) AS t_ns FROM facts.changes WHERE is_end GROUP BY key
) e ON e.key = s.key;

CREATE VIEW tasks AS
SELECT _id(p.id_high, p.id_low) AS id, p.job_id, p.group_name, p.node_id, t.seq, at_ns(t.t_ns) AS time,
    one.key AS task,
    one.value->>'$.state' AS state, coalesce((one.value->>'$.failed')::BOOLEAN, false) AS failed,
    coalesce((one.value->>'$.restarts')::BIGINT, 0) AS restarts, (one.value->>'$.exit_code')::BIGINT AS exit_code,
    one.value->>'$.events[#-1].kind' AS last_event, one.value->>'$.events[#-1].message' AS last_message, t.key
FROM facts.tasks t JOIN facts.placements p ON p.key = t.key, json_each(TRY_CAST(t.tasks AS JSON)) one;

CREATE VIEW task_usage AS
SELECT m.alloc_id AS id, p.job_id, p.group_name, m.node_id, m.task, make_timestamp(m.at_s * 1000000) AS time, m.samples,
    m.cpu_millicores, m.cpu_peak_millicores, m.memory_bytes, m.throttled_ms, m.oom_kills
FROM facts.task_minutes m LEFT JOIN facts.placements p ON _id(p.id_high, p.id_low) = m.alloc_id;

CREATE VIEW nodes AS
SELECT node_id, name, datacenter, node_pool, node_class, status, eligible, draining, cpu_mhz, memory_mib, disk_mib,
    reason, seq AS from_seq, to_seq, at_ns(t_ns) AS from_time, at_ns(to_ns) AS to_time,
    TRY_CAST(attributes AS JSON) AS attributes,
    TRY_CAST(meta AS JSON) AS meta
FROM (
    SELECT *, lead(seq) OVER w AS to_seq, lead(t_ns) OVER w AS to_ns
    FROM facts.nodes WINDOW w AS (PARTITION BY node_id ORDER BY seq, n)
)
WHERE status <> 'collected';

CREATE VIEW evaluations AS
SELECT e.id::VARCHAR AS id, e.job_id, e.priority, e.triggered_by, e.created_as, e.created_seq, e.woken_seq,
    e.ended_seq,
    at_ns(e.created_ns) AS created_time, at_ns(e.woken_ns) AS woken_time, at_ns(e.ended_ns) AS ended_time,
    coalesce(e.end_status, CASE WHEN e.woken_seq IS NULL THEN e.created_as ELSE 'pending' END) AS status,
    e.end_reason,
    e.previous_id::VARCHAR AS previous_id, e.key
FROM (
    SELECT key, any_value(id) AS id, any_value(job_id) AS job_id, max(priority) AS priority,
    any_value(triggered_by) AS triggered_by,
        any_value(previous_id) AS previous_id, min(seq) FILTER (what = 'created') AS created_seq,
        min(t_ns) FILTER (what = 'created') AS created_ns,
        any_value(status) FILTER (what = 'created') AS created_as,
        min(seq) FILTER (what = 'woken') AS woken_seq, min(t_ns) FILTER (what = 'woken') AS woken_ns,
        min(seq) FILTER (what = 'ended') AS ended_seq, min(t_ns) FILTER (what = 'ended') AS ended_ns,
        any_value(status) FILTER (what = 'ended') AS end_status,
        any_value(reason) FILTER (what = 'ended') AS end_reason
    FROM facts.evaluations GROUP BY key
) e;

-- Parked: undecided while another of the same shape is blocked and stands before it.
CREATE VIEW _parked AS
SELECT p.job_id, p.groups, p.counts, p.eval_id, p.key, l.job_id AS behind,
    greatest(p.seq, l.seq) AS from_seq, least(p.to_seq, l.to_seq) AS to_seq,
    greatest(p.t_ns, l.t_ns) AS from_ns, least(p.to_ns, l.to_ns) AS to_ns
FROM (
    SELECT *, lead(seq) OVER w AS to_seq, lead(t_ns) OVER w AS to_ns
    FROM facts.parked WINDOW w AS (PARTITION BY job_id ORDER BY seq, n)
) p JOIN (
    SELECT *, lead(seq) OVER w AS to_seq, lead(t_ns) OVER w AS to_ns
    FROM facts.leads WINDOW w AS (PARTITION BY shape ORDER BY seq, n)
) l ON l.shape = p.shape
WHERE p.groups IS NOT NULL AND l.job_id IS NOT NULL
    AND (l.rank < p.rank OR l.rank = p.rank AND (l.age < p.age OR l.age = p.age AND l.job_id < p.job_id))
    AND coalesce(greatest(p.seq, l.seq) < least(p.to_seq, l.to_seq), true);

CREATE VIEW reasons AS
SELECT job_id, group_name, "class", n, reasons, from_seq, to_seq, at_ns(from_ns) AS from_time,
    at_ns(to_ns) AS to_time, (to_ns - from_ns) / 1e9 AS seconds, decided_seq, woken_seq,
    eval_id::VARCHAR AS eval_id, key
FROM (
    -- What was woken is in no queue until it is decided anew.
    SELECT r.job_id, r.group_name, r."class", r.count AS n, r.reasons, r.seq AS from_seq,
        least(e.seq, e.woken_seq, r.next_seq) AS to_seq, r.t_ns AS from_ns,
        least(e.t_ns, e.woken_ns, r.next_ns) AS to_ns,
        r.seq AS decided_seq, e.woken_seq, r.eval_id, r.key
    FROM (
        SELECT *, min(seq) OVER w AS next_seq, min(t_ns) OVER w AS next_ns FROM facts.reasons
        WINDOW w AS (PARTITION BY job_id ORDER BY seq RANGE BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)
    ) r LEFT JOIN (
        SELECT key, min(seq) FILTER (what = 'ended') AS seq, min(t_ns) FILTER (what = 'ended') AS t_ns,
            min(seq) FILTER (what = 'woken') AS woken_seq, min(t_ns) FILTER (what = 'woken') AS woken_ns
        FROM facts.evaluations WHERE what IN ('ended', 'woken') GROUP BY key
    ) e ON e.key = r.key
    UNION ALL
    SELECT job_id, unnest(groups), 'priority', unnest(counts)::BIGINT,
        ['job ''' || behind || ''' is ahead of it in the queue for the same resources'], from_seq, to_seq,
        from_ns, to_ns, NULL, NULL, eval_id, key
    FROM _parked
);

CREATE VIEW deployments AS
SELECT d.id::VARCHAR AS id, d.job_id, d.version, d.status, d.cause, d.reason, d.reverted_to, d.started_seq,
    d.promoted_seq, d.ended_seq, at_ns(d.started_ns) AS started_time, at_ns(d.promoted_ns) AS promoted_time,
    at_ns(d.ended_ns) AS ended_time, (d.ended_ns - d.started_ns) / 1e9 AS seconds,
    g.desired, g.canaries, g.healthy, g.unhealthy, d.key
FROM (
    SELECT key, any_value(id) AS id, any_value(job_id) AS job_id, max(version) AS version,
        arg_max(status, seq * 1024 + n) FILTER (status IS NOT NULL AND what NOT IN ('held', 'released')) AS status,
        any_value(cause) FILTER (what = 'started') AS cause,
        arg_max(reason, seq * 1024 + n) FILTER (what IN ('ended', 'paused', 'held')) AS reason,
        nullif(max(reverted_to), -1) AS reverted_to,
        min(seq) FILTER (what = 'started') AS started_seq, min(t_ns) FILTER (what = 'started') AS started_ns,
        min(seq) FILTER (what = 'promoted') AS promoted_seq, min(t_ns) FILTER (what = 'promoted') AS promoted_ns,
        min(seq) FILTER (what = 'ended') AS ended_seq, min(t_ns) FILTER (what = 'ended') AS ended_ns
    FROM facts.deployments GROUP BY key
) d JOIN (
    SELECT key, sum(desired)::BIGINT AS desired, sum(canaries)::BIGINT AS canaries,
        sum(healthy)::BIGINT AS healthy, sum(unhealthy)::BIGINT AS unhealthy
    FROM (
        SELECT key, arg_max(desired, seq * 1024 + n) FILTER (desired >= 0) AS desired,
            arg_max(canaries, seq * 1024 + n) FILTER (canaries >= 0) AS canaries,
            coalesce(sum(healthy) FILTER (what = 'health'), 0) AS healthy,
            coalesce(sum(unhealthy) FILTER (what = 'health'), 0) AS unhealthy
        FROM facts.deployments WHERE group_name IS NOT NULL GROUP BY key, group_name
    )
    GROUP BY key
) g ON g.key = d.key WHERE d.started_seq IS NOT NULL;

CREATE VIEW rollouts AS
SELECT any_value(id)::VARCHAR AS id, any_value(name) AS name, any_value(ordering) AS ordering,
    arg_max(status, seq * 1024 + n) AS status, any_value(cause) AS cause, any_value(reason) AS reason,
    list(job_id ORDER BY place) FILTER (what = 'started') AS jobs,
    min(seq) FILTER (what = 'started') AS started_seq, min(seq) FILTER (what = 'ended') AS ended_seq,
    at_ns(min(t_ns) FILTER (what = 'started')) AS started_time,
    at_ns(min(t_ns) FILTER (what = 'ended')) AS ended_time,
    (min(t_ns) FILTER (what = 'ended') - min(t_ns) FILTER (what = 'started')) / 1e9 AS seconds, key
FROM facts.rollouts GROUP BY key HAVING started_seq IS NOT NULL;

CREATE VIEW variables AS
SELECT path, incarnation, max(seq) FILTER (what = 'put') AS revision,
    arg_max(items, seq * 1024 + n) FILTER (what = 'put') AS items,
    arg_max(size, seq * 1024 + n) FILTER (what = 'put') AS size,
    min(seq) FILTER (what = 'put') AS created_seq, min(seq) FILTER (what = 'deleted') AS deleted_seq,
    min(seq) FILTER (what = 'shredded') AS shredded_seq,
    at_ns(min(t_ns) FILTER (what = 'put')) AS created_time, at_ns(max(t_ns) FILTER (what = 'put')) AS changed_time,
    at_ns(min(t_ns) FILTER (what = 'deleted')) AS deleted_time,
    at_ns(min(t_ns) FILTER (what = 'shredded')) AS shredded_time
FROM facts.variables GROUP BY path, incarnation;

CREATE VIEW variable_locks AS
SELECT path, seq AS from_seq, to_seq, at_ns(t_ns) AS from_time, at_ns(to_ns) AS to_time,
    (to_ns - t_ns) / 1e9 AS seconds, ending AS end_reason, ttl_ns / 1e9 AS ttl_s, delay_ns / 1e9 AS delay_s,
    at_ns(CASE WHEN ending = 'expired' THEN free_ns_after END) AS free_time
FROM (
    SELECT *, lead(seq) OVER later AS to_seq, lead(t_ns) OVER later AS to_ns,
        lead(what) OVER later AS ending, lead(free_ns) OVER later AS free_ns_after
    FROM facts.variable_locks WINDOW later AS (PARTITION BY path ORDER BY seq, n)
) WHERE what = 'locked';

CREATE VIEW decisions AS
SELECT seq, n, at_ns(t_ns) AS time, outcome, job_id, eval_id::VARCHAR AS eval_id, worker, number, part, parts,
    snapshot_seq,
    policy, seed, lane, lanes, core, placed, cut, stopped, updated, evicted, code, reason, key
FROM facts.decisions;
"""

_MACROS = """
CREATE MACRO last_seq() AS (SELECT max(seq) FROM facts.records);
CREATE MACRO _is_here(moment) AS (SELECT CASE WHEN moment > max(seq)
    THEN error('the log ends at ' || max(seq) || ', asked for ' || moment) ELSE true END FROM facts.records);

CREATE MACRO usage_at(moment) AS TABLE
SELECT n.node_id, n.status, coalesce(u.allocations, 0)::BIGINT AS allocations,
    coalesce(u.cpu, 0)::BIGINT AS cpu_mhz, n.cpu_mhz AS cpu_mhz_of, coalesce(u.memory, 0)::BIGINT AS memory_mib,
    n.memory_mib AS memory_mib_of, coalesce(u.disk, 0)::BIGINT AS disk_mib, n.disk_mib AS disk_mib_of
FROM (
    SELECT * FROM nodes WHERE _is_here(moment) AND from_seq <= moment AND (to_seq IS NULL OR to_seq > moment)
) n LEFT JOIN (
    SELECT node_id, sum(allocations) AS allocations, sum(cpu_mhz) AS cpu, sum(memory_mib) AS memory,
        sum(disk_mib) AS disk
    FROM facts.usage WHERE seq <= moment GROUP BY node_id
) u ON u.node_id = n.node_id;

CREATE MACRO node_history(_node) AS TABLE
SELECT * FROM (
    SELECT from_seq AS seq, from_time AS time, 'node' AS what, status || CASE WHEN draining THEN ', draining'
        WHEN NOT eligible THEN ', not eligible' ELSE '' END || coalesce(', ' || reason, '') AS detail
    FROM nodes WHERE node_id = _node
    UNION ALL
    SELECT seq, at_ns(t_ns), 'node', 'collected' FROM facts.nodes WHERE node_id = _node AND status = 'collected'
    UNION ALL
    SELECT placed_seq, placed_time, 'placed', name || ' ' || substr(allocations.id, 1, 8)
    FROM allocations WHERE node_id = _node
    UNION ALL
    SELECT from_seq, from_time, client_status,
        job_id || '.' || group_name || '[' || name_index || '] ' || substr(allocation_states.id, 1, 8)
    FROM allocation_states WHERE node_id = _node AND client_status <> 'pending'
) ORDER BY seq, what, detail;

CREATE MACRO job_history(_job) AS TABLE
SELECT * FROM (
    SELECT seq, at_ns(t_ns) AS time, what, CASE WHEN version < 0 THEN '' ELSE 'version ' || version || ', priority '
        || priority END AS detail
    FROM facts.jobs WHERE job_id = _job
    UNION ALL
    SELECT created_seq, created_time, 'evaluation', created_as || ', ' || triggered_by || ' ' || substr(e.id, 1, 8)
    FROM evaluations e WHERE job_id = _job
    UNION ALL
    SELECT woken_seq, woken_time, 'woken', substr(e.id, 1, 8)
    FROM evaluations e WHERE job_id = _job AND woken_seq IS NOT NULL
    UNION ALL
    SELECT d.seq, at_ns(d.t_ns), 'deployment', d.what || coalesce(' ' || d.group_name, '') || ' '
        || substr(d.id::VARCHAR, 1, 8) || coalesce(': ' || d.reason, '')
    FROM facts.deployments d JOIN deployments o ON o.key = d.key
    WHERE o.job_id = _job AND d.what NOT IN ('health', 'sized')
    UNION ALL
    SELECT seq, time, 'launch', coalesce('of ' || child_id, 'skipped: ' || skipped)
    FROM launches WHERE job_id = _job
    UNION ALL
    SELECT m.seq, at_ns(m.t_ns), 'rollout', 'started ' || r.name || ' ' || substr(r.id, 1, 8) || ' with version '
        || m.version
    FROM facts.rollouts m JOIN rollouts r ON r.key = m.key WHERE m.job_id = _job
    UNION ALL
    SELECT r.ended_seq, r.ended_time, 'rollout', r.status || ' ' || r.name || ' ' || substr(r.id, 1, 8)
        || coalesce(': ' || r.reason, '')
    FROM facts.rollouts m JOIN rollouts r ON r.key = m.key WHERE m.job_id = _job AND r.ended_seq IS NOT NULL
    UNION ALL
    SELECT seq, time, 'plan', outcome || ' of ' || worker || ': placed ' || placed || ', cut ' || cut || ',
    stopped '
        || stopped || ', evicted ' || evicted || coalesce(' (' || code || ')', '')
    FROM decisions WHERE job_id = _job
    UNION ALL
    SELECT from_seq, from_time, 'waiting', n || ' of ' || group_name || ': ' || "class" || '; '
        || array_to_string(reasons, '; ')
    FROM reasons WHERE job_id = _job
    UNION ALL
    SELECT from_seq, from_time, client_status, group_name || '[' || name_index || '] on ' || node_id || ' '
        || substr(s.id, 1, 8)
    FROM allocation_states s WHERE job_id = _job AND client_status <> 'pending'
) ORDER BY seq, what, detail;

CREATE MACRO waiting(_job) AS TABLE
-- What waits still has no end: max would pass over it.
SELECT group_name, "class", n, reasons, min(from_seq) AS from_seq,
    CASE WHEN count(to_seq) = count(*) THEN max(to_seq) END AS to_seq,
    min(from_time) AS from_time, CASE WHEN count(to_seq) = count(*) THEN max(to_time) END AS to_time,
    epoch(coalesce(CASE WHEN count(to_seq) = count(*) THEN max(to_time) END, (SELECT max(time) FROM records))
        - min(from_time)) AS seconds,
    count(decided_seq) AS decisions, max(decided_seq) AS decided_seq, arg_max_null(woken_seq, from_seq) AS woken_seq
FROM (
    -- A row continues the one before it if both are equal and adjacent.
    SELECT *, sum(is_other::INTEGER) OVER (PARTITION BY group_name ORDER BY from_seq) AS island FROM (
        SELECT *, coalesce("class" <> lag("class") OVER w OR n <> lag(n) OVER w OR reasons <> lag(reasons) OVER w
            OR from_seq <> lag(to_seq) OVER w, true) AS is_other
        FROM reasons WHERE job_id = _job WINDOW w AS (PARTITION BY group_name ORDER BY from_seq)
    )
)
GROUP BY group_name, "class", n, reasons, island ORDER BY 5, group_name;

CREATE MACRO timeline(_job) AS TABLE
SELECT * FROM (
    SELECT 'job' AS lane, job_id AS name, status || ' v' || version AS state, '' AS detail, from_seq, to_seq,
    from_time,
        to_time
    FROM jobs WHERE job_id = _job
    UNION ALL
    SELECT 'evaluation', substr(id, 1, 8), created_as, triggered_by, created_seq, coalesce(woken_seq, ended_seq),
        created_time, coalesce(woken_time, ended_time)
    FROM evaluations WHERE job_id = _job
    UNION ALL
    SELECT 'evaluation', substr(id, 1, 8), 'pending', 'woken', woken_seq, ended_seq, woken_time, ended_time
    FROM evaluations WHERE job_id = _job AND woken_seq IS NOT NULL
    UNION ALL
    SELECT 'deployment', 'v' || d.version || ' ' || substr(d.id, 1, 8), s.status, coalesce(s.detail, ''), s.seq,
        CASE WHEN s.what = 'ended' THEN s.seq ELSE s.to_seq END, at_ns(s.t_ns),
        at_ns(CASE WHEN s.what = 'ended' THEN s.t_ns ELSE s.to_ns END)
    FROM deployments d JOIN (
        SELECT *, lead(seq) OVER w AS to_seq, lead(t_ns) OVER w AS to_ns FROM (
            SELECT key, seq, n, min(t_ns) AS t_ns, any_value(what) AS what, any_value(status) AS status,
                CASE any_value(what)
                    WHEN 'promoted' THEN string_agg(group_name, ', ' ORDER BY group_name) || ' promoted'
                    WHEN 'started' THEN sum(desired) || ' allocations' || CASE WHEN sum(canaries) > 0
                        THEN ', ' || sum(canaries) || ' canaries first' ELSE '' END
                    WHEN 'held' THEN any_value(cause) || ': ' || any_value(reason)
                    WHEN 'released' THEN any_value(cause) || ': ' || any_value(reason)
                    ELSE any_value(reason) END AS detail
            FROM facts.deployments WHERE status IS NOT NULL GROUP BY key, seq, n
        ) WINDOW w AS (PARTITION BY key ORDER BY seq, n)
    ) s ON s.key = d.key WHERE d.job_id = _job
    UNION ALL
    SELECT 'launch', strftime(planned_time, '%Y-%m-%dT%H:%M:%SZ'),
        CASE WHEN skipped IS NOT NULL THEN 'skipped' WHEN forced THEN 'forced' ELSE 'launched' END,
        coalesce(child_id, skipped || CASE WHEN missed > 0 THEN ', ' || missed || ' instants' ELSE '' END),
        seq, seq, time, time
    FROM launches WHERE job_id = _job
    UNION ALL
    SELECT 'rollout', r.name || ' ' || substr(r.id, 1, 8), r.status,
        CASE WHEN r.status = 'running' THEN 'version ' || m.version ELSE coalesce(r.reason, '') END,
        r.started_seq, r.ended_seq, r.started_time, r.ended_time
    FROM rollouts r JOIN facts.rollouts m ON m.key = r.key AND m.what = 'started' WHERE m.job_id = _job
    UNION ALL
    SELECT 'waiting', group_name, "class", n || ' wait: ' || array_to_string(reasons, '; ')
        || coalesce(' (decided at seq ' || decided_seq || ')', ' (not decided yet)'),
        from_seq, to_seq, from_time, to_time
    FROM waiting(_job)
    UNION ALL
    SELECT 'allocation', group_name || '[' || name_index || '] ' || substr(id, 1, 8), client_status, node_id,
    from_seq,
        CASE WHEN ended THEN coalesce(to_seq, from_seq) ELSE to_seq END, from_time,
        CASE WHEN ended THEN coalesce(to_time, from_time) ELSE to_time END
    FROM (
        SELECT *, client_status IN ('complete', 'failed',
        'lost') AS ended FROM allocation_states WHERE job_id = _job
    )
    UNION ALL
    SELECT 'stop', group_name || '[' || name_index || '] ' || substr(_id(p.id_high, p.id_low), 1, 8),
        _desired(c.desired), coalesce(c.reason, ''), c.seq, c.ended_seq, at_ns(c.t_ns), at_ns(c.ended_ns)
    FROM facts.placements p JOIN (
        SELECT key, min_by(desired, seq) FILTER (desired > 0) AS desired,
            min_by(reason, seq) FILTER (desired > 0) AS reason,
            min(seq) FILTER (desired > 0) AS seq, min(t_ns) FILTER (desired > 0) AS t_ns,
            min(seq) FILTER (is_end) AS ended_seq, min(t_ns) FILTER (is_end) AS ended_ns
        FROM facts.changes GROUP BY key
    ) c ON c.key = p.key WHERE p.job_id = _job AND c.seq IS NOT NULL
) ORDER BY from_seq, lane, name;
"""

#: The state at a seq where every span is there: those of the last full chunk before it, and of the lean ones since.
#: A later chunk is not looked at: a full one would carry the same spans once more.
STATE_FROM_INTERVALS = """
-- A list, not a join, so that columns that a query does not select cost nothing.
CREATE MACRO _word(word) AS (
    SELECT list(t.text ORDER BY g.code) FROM range((SELECT max(code) + 1 FROM facts.texts)) AS g(code)
    LEFT JOIN facts.texts t ON t.code = g.code
)[word + 1];
CREATE MACRO _base(moment) AS (
    SELECT coalesce(max(first_seq), 0) FROM facts.bases WHERE first_seq <= moment
);
CREATE MACRO allocations_at(moment) AS TABLE
SELECT _alloc_id(s.key) AS id, _word(s.job_word) AS job_id, _word(s.group_word) AS group_name,
    s.name_index::BIGINT AS name_index, _word(s.node_word) AS node_id,
    s.version::BIGINT AS version, _client(s.client) AS client_status, _desired(s.desired) AS desired_status,
    s.key >> 20 AS placed_seq, at_ns(s.placed_ns) AS placed_time, s.key
FROM facts.spans s ANTI JOIN (
    SELECT key, from_seq FROM facts.closes WHERE segment >= _base(moment) AND seq <= moment
) c ON c.key = s.key AND c.from_seq = s.seq
WHERE _is_here(moment) AND s.segment BETWEEN _base(moment) AND moment AND s.seq <= moment AND s.until > moment;
"""

#: The same from all that ever happened, where spans are missing (an older export, a damaged file).
STATE_FROM_CHANGES = """
CREATE MACRO allocations_at(moment) AS TABLE
SELECT _id(p.id_high, p.id_low) AS id, p.job_id, p.group_name, p.name_index, p.node_id, coalesce(u.version,
    p.version) AS version,
    _client(coalesce(u.client, 0)) AS client_status, _desired(coalesce(u.desired, 0)) AS desired_status,
    p.seq AS placed_seq, at_ns(p.t_ns) AS placed_time, p.key
FROM facts.placements p LEFT JOIN (
    SELECT key, max((seq << 24) + (n << 8) + client) FILTER (client >= 0) & 255 AS client,
        max((seq << 24) + (n << 8) + desired) FILTER (desired >= 0) & 255 AS desired,
        arg_max(version, seq) FILTER (version >= 0) AS version, bool_or(is_end) AS is_end
    FROM facts.changes WHERE seq <= moment GROUP BY key
) u ON u.key = p.key
WHERE _is_here(moment) AND p.seq <= moment AND NOT coalesce(u.is_end, false);
"""

VIEWS = _WORDS + _TABLES + _MACROS

#: Tables and macros for queries.
SQL_TABLES = (
    *(
        "events",
        "jobs",
        "groups",
        "allocations",
        "allocation_states",
        "pool_usage",
        "tasks",
        "nodes",
    ),
    *(
        "evaluations",
        "decisions",
        "deployments",
        "launches",
        "rollouts",
        "variables",
        "variable_locks",
        "reasons",
        "records",
    ),
)
SQL_MACROS = (
    *("allocations_at(seq)", "usage_at(seq)", "node_history(id)", "job_history(id)"),
    *("waiting(job)", "timeline(job)", "last_seq()"),
)
