"""mend how many units of a stream are erased: each erasure, a repeated one too, took one away instead of adding it

The version before still takes one away. The database refuses that, so its API answers 500; a newer API erases the unit.
"""

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None
widens = True


def upgrade() -> None:
    op.execute("LOCK TABLE streams IN EXCLUSIVE MODE")  # no unit is erased between counting them and refusing
    # A counter that is too high tells of an erasure that the database has lost, and stays.
    op.execute(
        """
        UPDATE streams SET units_erased = number
        FROM (SELECT stream_id, count(*) AS number FROM units WHERE erased GROUP BY stream_id) AS erased
        WHERE id = stream_id AND units_erased < number
        """
    )
    op.execute(
        """
        CREATE FUNCTION refuse_fewer_erased() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION 'units of a stream that are erased never become fewer' USING ERRCODE = 'restrict_violation';
        END $$
        """
    )
    op.execute(
        "CREATE TRIGGER units_erased BEFORE UPDATE OF units_erased ON streams FOR EACH ROW "
        "WHEN (NEW.units_erased < OLD.units_erased) EXECUTE FUNCTION refuse_fewer_erased()"
    )


def downgrade() -> None:
    op.execute("DROP TRIGGER units_erased ON streams")
    op.execute("DROP FUNCTION refuse_fewer_erased()")
