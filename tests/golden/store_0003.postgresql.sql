CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.documents (
    run_id character varying(80) NOT NULL,
    document text NOT NULL
);
CREATE TABLE public.folders (
    origin character varying(40) NOT NULL,
    host text NOT NULL,
    path text NOT NULL,
    scanned_ns bigint NOT NULL
);
CREATE TABLE public.labels (
    run_id character varying(80) NOT NULL,
    label character varying(60) NOT NULL
);
CREATE TABLE public.runs (
    id character varying(80) NOT NULL,
    kind character varying(20) NOT NULL,
    state character varying(20) NOT NULL,
    verdict character varying(20) NOT NULL,
    created_s double precision NOT NULL,
    started_s double precision,
    finished_s double precision,
    device character varying(40) NOT NULL,
    machine text NOT NULL,
    host text NOT NULL,
    model text NOT NULL,
    sentence text NOT NULL,
    note text DEFAULT ''::text NOT NULL,
    points integer NOT NULL,
    size_bytes bigint NOT NULL,
    origin character varying(40) NOT NULL,
    files_url text DEFAULT ''::text NOT NULL,
    deleted_s double precision,
    owner text DEFAULT ''::text NOT NULL,
    owner_key text DEFAULT ''::text NOT NULL,
    private integer DEFAULT 0 NOT NULL
);
INSERT INTO public.alembic_version VALUES ('0003');
INSERT INTO public.documents VALUES ('20260401-101500-benchmark-0a1b2c3d', '{"schema": "kvcanary.run", "version": 2, "id": "20260401-101500-benchmark-0a1b2c3d", "kind": "benchmark", "state": "done", "spec": {"settings": {"model": "qwen3-32b"}, "device": "cpu"}, "created_s": 100.0, "verdict": "pass", "sentence": "Pass: 14 checks; it''s sound."}');
INSERT INTO public.documents VALUES ('20260401-101600-campaign-0a1b2c3e', '{"schema": "kvcanary.run", "version": 2, "id": "20260401-101600-campaign-0a1b2c3e", "kind": "campaign", "state": "done", "spec": {"settings": {"model": "qwen3-32b"}, "device": "cpu"}, "created_s": 100.0, "verdict": "pass", "sentence": "Interrupted after 2 runs."}');
INSERT INTO public.documents VALUES ('20260401-101700-plan-0a1b2c3f', '{"schema": "kvcanary.run", "version": 2, "id": "20260401-101700-plan-0a1b2c3f", "kind": "plan", "state": "done", "spec": {"settings": {"model": "qwen3-32b"}, "device": "cpu"}, "created_s": 100.0, "verdict": "pass", "sentence": "Will not start."}');
INSERT INTO public.folders VALUES ('aaaa', 'node-1', '/data/a', 17000000000);
INSERT INTO public.folders VALUES ('bbbb', 'node-2', '/data/b', 0);
INSERT INTO public.labels VALUES ('20260401-101500-benchmark-0a1b2c3d', 'baseline');
INSERT INTO public.labels VALUES ('20260401-101500-benchmark-0a1b2c3d', 'night');
INSERT INTO public.runs VALUES ('20260401-101500-benchmark-0a1b2c3d', 'benchmark', 'done', 'pass', 100.5, 101, 109.25, 'cpu', 'Xeon', 'node-1', 'qwen3-32b', 'Pass: 14 checks; it''s sound.', 'after the driver update', 6, 4321, 'aaaa', '', NULL, '', '', 0);
INSERT INTO public.runs VALUES ('20260401-101600-campaign-0a1b2c3e', 'campaign', 'interrupted', 'partial', 160.5, 161, 169.25, 'cuda:0', 'H200', 'node-2', '', 'Interrupted after 2 runs.', '', 2, 999, 'bbbb', 'file:///shared/20260401-101600-campaign-0a1b2c3e', NULL, '', '', 0);
INSERT INTO public.runs VALUES ('20260401-101700-plan-0a1b2c3f', 'plan', 'done', 'fail', 220, 220, 220, '', '', '', 'llama-3', 'Will not start.', '', 0, 77, 'aaaa', '', 500.25, 'ada@example.org (https://login.example.org#17)', 'https://login.example.org#17', 1);
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.documents
    ADD CONSTRAINT pk_documents PRIMARY KEY (run_id);
ALTER TABLE ONLY public.folders
    ADD CONSTRAINT pk_folders PRIMARY KEY (origin);
ALTER TABLE ONLY public.labels
    ADD CONSTRAINT pk_labels PRIMARY KEY (run_id, label);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT pk_runs PRIMARY KEY (id);
CREATE INDEX ix_labels_label ON public.labels USING btree (label);
CREATE INDEX ix_runs_deleted_s_created_s_id_private_owner_key ON public.runs USING btree (deleted_s, created_s, id, private, owner_key);
CREATE INDEX ix_runs_kind_created_s_private_owner_key ON public.runs USING btree (kind, created_s, private, owner_key);
CREATE INDEX ix_runs_machine_created_s_private_owner_key ON public.runs USING btree (machine, created_s, private, owner_key);
CREATE INDEX ix_runs_model_created_s_private_owner_key ON public.runs USING btree (model, created_s, private, owner_key);
CREATE INDEX ix_runs_state_created_s_private_owner_key ON public.runs USING btree (state, created_s, private, owner_key);
CREATE INDEX ix_runs_verdict_created_s_private_owner_key ON public.runs USING btree (verdict, created_s, private, owner_key);
ALTER TABLE ONLY public.documents
    ADD CONSTRAINT fk_documents_run_id FOREIGN KEY (run_id) REFERENCES public.runs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.labels
    ADD CONSTRAINT fk_labels_run_id FOREIGN KEY (run_id) REFERENCES public.runs(id) ON DELETE CASCADE;
